"""Samples of products in groups of rows, as mixtures of experts have them.

torch's own operator has shapes for bfloat16 alone before it runs; what transformers exports otherwise does the same.
"""

from tests.torch_fx.sample import Sample

GROUPED = "ends = aten.cumsum.default(n, 0); torch.ops.transformers.grouped_mm_fallback({}, ends)"
OP = "transformers::grouped_mm_fallback"
SAMPLES = (
    Sample(OP, "x: 12 6, w: 4 6 10 weight, n: 4 int", GROUPED.format("x, w"), free="w[2]", sums="x[1]", passes="x w"),
    Sample(
        OP,
        "x: 12 10, w: 4 6 10 weight, n: 4 int",
        GROUPED.format("x, aten.transpose.int(w, 1, 2)"),
        free="t1[2]",
        sums="x[1]",
        passes="x",
        note="of matrices that are stored turned",
    ),
    Sample(
        OP, "x: r 6, w: 4 6 9, n: 4 int", GROUPED.format("x, w"), free="w[2]", sums="x[1]", passes="x w",
        sizes={"r": 7}, values={"n": (0, 2)}, note="of computed matrices",
    ),
    Sample(
        "_grouped_mm", "x: 12 48 bfloat16, w: 4 48 72 bfloat16 weight, n: 4 int",
        "ends = aten.cumsum.default(n, 0, dtype=torch.int32); aten._grouped_mm.default(x, w, ends)", free="w[2].0",
        sums="x[1].0", passes="x w", exact=False, trains=False, note="in groups",
    ),
    Sample(
        "_grouped_mm", "x: 4 8 16 bfloat16, w: 4 16 24 bfloat16", "(x, w)", note="a batch has no rule", exact=False,
        trains=False,
    ),
)  # fmt: skip
