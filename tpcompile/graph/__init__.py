"""A model in memory: reading it, the neutral program, and the shapes of its values."""
