"""PyTorch models in, PyTorch programs out: `parallelize`, `save` of what it gives, `load`, `merge`."""

from tpcompile.torch.bundle import load
from tpcompile.torch.merge import merge
from tpcompile.torch.parallelize import Parallelized, parallelize

__all__ = ["Parallelized", "load", "merge", "parallelize"]
