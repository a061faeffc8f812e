"""Decoders of any number of heads, width and vocabulary, written in four ways, on any number of ranks."""
