"""Samples of every reading and rule of PyTorch's operators, one file per family."""

from importlib import import_module
from importlib.util import find_spec

from tests.torch_fx.sample import Sample

FAMILIES = ["axes", "elementwise", "images", "indexed", "made", "norms", "products"]
if find_spec("transformers"):  # the operators of its own that it exports
    FAMILIES.append("experts")
SAMPLES: dict[str, tuple[Sample, ...]] = {
    family: tuple(import_module(f"{__name__}.{family}").SAMPLES) for family in FAMILIES
}
