"""Samples of every operator that has a rule, one file beside each file of `tpcompile/dims/rules`."""

from tests.rules.sample import Sample
from tests.rules.samples import (
    attention,
    branches,
    contractions,
    elementwise,
    experts,
    fused,
    fused_attention,
    images,
    in_blocks,
    joins,
    lookups,
    norms,
    quantized,
    recurrences,
    reductions,
    reshapes,
)

FAMILIES = (
    attention,
    branches,
    contractions,
    elementwise,
    experts,
    fused,
    fused_attention,
    images,
    in_blocks,
    joins,
    lookups,
    norms,
    quantized,
    recurrences,
    reductions,
    reshapes,
)
SAMPLES: list[Sample] = [sample for family in FAMILIES for sample in family.SAMPLES]
