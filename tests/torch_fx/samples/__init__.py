"""Samples of every reading and rule of PyTorch's operators, one file per family."""

from importlib import import_module

from tests.torch_fx.sample import Sample

FAMILIES = ["axes", "elementwise", "images", "indexed", "made", "norms", "products"]
SAMPLES: dict[str, tuple[Sample, ...]] = {
    family: tuple(import_module(f"{__name__}.{family}").SAMPLES) for family in FAMILIES
}
