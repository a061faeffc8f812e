"""Samples of every operator that has a rule, one file beside each file of `tpcompile/dims/rules`."""

from importlib import import_module

from tests.rules.sample import Sample
from tpcompile.dims import rules

SAMPLES: list[Sample] = [sample for family in rules.__all__ for sample in import_module(f"{__name__}.{family}").SAMPLES]
