"""The rules, one file per family of operators. Importing this package fills the table in `tpcompile.dims.registry`."""

from tpcompile.dims.rules import (
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

__all__ = [
    "attention",
    "branches",
    "contractions",
    "elementwise",
    "experts",
    "fused",
    "fused_attention",
    "images",
    "in_blocks",
    "joins",
    "lookups",
    "norms",
    "quantized",
    "recurrences",
    "reductions",
    "reshapes",
]
