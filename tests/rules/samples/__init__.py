"""Samples of every operator that has a rule, one file beside each file of `tpcompile/dims/rules`.

Rules of PyTorch's operators are proved by torch itself, in `tests/torch_fx`.
"""

from importlib import import_module

from tests.rules.sample import Sample
from tpcompile.dims import rules

FAMILIES = [family for family in rules.__all__ if not family.startswith("aten")]
SAMPLES: list[Sample] = [sample for family in FAMILIES for sample in import_module(f"{__name__}.{family}").SAMPLES]
