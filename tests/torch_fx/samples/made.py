"""Samples of operators that make values of sizes and numbers alone."""

from tests.torch_fx.sample import Sample

FREE = "y[1] y[2]"

SAMPLES = [
    Sample("full", "x: b 6 10", "x + aten.full.default([b, 6, 10], 1.5)", free=FREE, note="of an unknown batch"),
    Sample("zeros", "x: b 6 10", "x * aten.zeros.default([b, 6, 10])", free=FREE),
    Sample("ones", "x: 4 6 10", "x * aten.ones.default([4, 6, 10])", free="y[0] y[1] y[2]"),
    Sample("empty.memory_format", "x: 4 6 10", "x * aten.empty.memory_format([4, 6, 10])", free="y[0] y[1] y[2]",
           exact=False),
    Sample("empty_permuted", "x: 4 6 10", "x * aten.empty_permuted.default([4, 6, 10], [0, 1, 2])",
           free="y[0] y[1] y[2]", exact=False),
    Sample("new_zeros", "x: b 6 10", "(x, [b, 6, 10])", free=f"x[1] x[2] {FREE}"),
    Sample("new_ones", "x: b 6", "x.unsqueeze(-1) + aten.new_ones.default(x, [b, 6, 10])", free="x[1] y[2]"),
    Sample("new_full", "x: 4 6", "(x, [6, 10], 2.5)", free="x[0] x[1] y[0] y[1]"),
    Sample("new_empty", "x: 4 6", "(x, [6, 10])", free="x[0] x[1] y[0] y[1]", exact=False),
    Sample("arange", "x: b s", "x + aten.arange.default(s)"),
    Sample("arange", "x: b 6", "x + aten.arange.default(6)", note="of a number"),
    Sample("arange.start", "x: b 6", "x + aten.arange.start(1, 7)"),
    Sample("arange.start_step", "x: b 6", "x + aten.arange.start_step(0, 12, 2)"),
    Sample("linspace", "x: b 6", "x + aten.linspace.default(0.0, 1.0, 6)"),
    Sample("logspace", "x: b 6", "x + aten.logspace.default(0.0, 1.0, 6)"),
    Sample("eye", "x: 6 6", "x + aten.eye.default(6)"),
    Sample("scalar_tensor", "x: b 6", "torch.where(x > 0, x, aten.scalar_tensor.default(0.5))"),
    Sample("tril_indices", "x: b 6", "x + aten.tril_indices.default(3, 3).sum(0)"),
    Sample("triu_indices", "x: b 6", "x + aten.triu_indices.default(3, 3).sum(0)"),
]  # fmt: skip
