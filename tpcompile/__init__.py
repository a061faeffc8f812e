"""tpcompile takes a model made for one device and makes it run on N, by tensor parallelism, with the same numbers."""

__version__ = "0.1.0"
