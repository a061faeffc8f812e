"""ONNX's own sharding annotations (IR version 11): written from a plan, read as one, and checked."""
