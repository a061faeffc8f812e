"""Samples of operators that normalise, sort, search, run along or reduce axes; losses among them."""

from tests.torch_fx.sample import Sample

N = "x: 4 6 10"
BOTH = "x: 4 6 10, z: 4 6 10"
IMAGE = "x: 2 12 5 3"
CHANNELS = "w: 12 weight, c: 12 weight"


def along(targets: str, code: str, inputs: str = N, free: str = "x[0] x[2]", passes: str = "", note: str = "",
          sums: str = "", trains: bool = True) -> list[Sample]:  # fmt: skip
    """Operators along axis 1 of three."""
    return [
        Sample(name, inputs, code, free=free, sums=sums, passes=passes, note=note, trains=trains)
        for name in targets.split()
    ]


ALL = "x[0] x[1] x[2]"

SAMPLES = [
    Sample("softmax.int", "x: b 6 s", "(x, -1)", free="x[1]"),
    *along("softmax.int log_softmax.int", "(x, 1)", note="in the middle"),
    *along("_softmax _log_softmax", "(x, 1, False)"),
    *along("_safe_softmax", "(x, 1)"),
    Sample("log_softmax.int", "x: b 6 s", "(x, 1)", note="of all that is static"),
    Sample("layer_norm", "x: b s 6 10, w: 10 weight, c: 10 weight", "(x, [10], w, c)", free="x[2]"),
    Sample("layer_norm", "x: 4 6 10", "(x, [6, 10])", free="x[0]", note="two axes"),
    Sample("native_layer_norm", "x: 4 6 10, w: 10 weight", "(x, [10], w, None, 1e-5)", free="x[0] x[1]"),
    Sample("rms_norm", "x: b s 6 10, w: 10 weight", "(x, [10], w, 1e-5)", free="x[2]"),
    Sample("_fused_rms_norm", "x: 4 6 10, w: 10 weight", "(x, [10], w, 1e-5)", free="x[0] x[1]"),
    Sample("group_norm", f"x: b 12 s 3, {CHANNELS}", "(x, 6, w, c)", free="x[1].0"),
    Sample("group_norm", IMAGE, "(x, 6)", free="x[0] x[1].0", note="without weights"),
    Sample("native_group_norm", f"x: b 12 5 3, {CHANNELS}", "(x, w, c, b, 12, 15, 6, 1e-5)[0]", free="x[1].0"),
    Sample("batch_norm", f"{IMAGE}, {CHANNELS}, m: 12 buffer, v: 12 buffer",
           "(x, w, c, m, v, False, 0.1, 1e-5, False)", free="x[0] x[1] x[2] x[3]", values={"v": (0.5, 2)}),
    Sample("batch_norm", f"{IMAGE}, {CHANNELS}", "(x, w, c, None, None, True, 0.1, 1e-5, False)", free="x[1]",
           note="of the batch itself"),
    Sample("instance_norm", f"{IMAGE}, {CHANNELS}", "(x, w, c, None, None, True, 0.1, 1e-5, False)", free="x[1]"),
    Sample("native_batch_norm", f"{IMAGE}, {CHANNELS}, m: 12 buffer, v: 12 buffer", "(x, w, c, m, v, False, 0.1, 1e-5)",
           free="x[0] x[1] x[2] x[3]", values={"v": (0.5, 2)}),
    Sample("_native_batch_norm_legit_no_training", f"{IMAGE}, {CHANNELS}, m: 12 buffer, v: 12 buffer",
           "(x, w, c, m, v, 0.1, 1e-5)", free="x[0] x[1] x[2] x[3]", values={"v": (0.5, 2)}),
    Sample("_native_batch_norm_legit_functional", f"{IMAGE}, {CHANNELS}, m: 12 buffer, v: 12 buffer",
           "(x, w, c, m, v, True, 0.1, 1e-5)", free="x[1]", values={"v": (0.5, 2)}),
    # sorted, searched
    *along("topk", "(x, 3, 1)"),
    *along("sort argsort", "(x, 1, True)"),
    *along("sort.stable argsort.stable", "(x, stable=True, dim=1)"),
    *along("argmax argmin", "(x, 1)"),
    Sample("argmax", N, "(x, -2, True)", free="x[0] x[2]", note="kept"),
    Sample("argmax", N, "(x)", note="flattened"),
    *along("max.dim min.dim median.dim mode", "(x, 1)"),
    *along("kthvalue", "(x, 2, 1, True)"),
    *along("cumsum cumprod cummax cummin logcumsumexp", "(x, 1)"),
    Sample("cumsum", "m: b s bool", "(m, -1)", note="of a mask"),
    # reduced
    Sample("sum.dim_IntList", "x: b s 6 10", "(x, [-1, 1], True)", free="x[2]", sums="x[3]", passes="x"),
    Sample("sum", N, "(x)", sums=ALL, passes="x"),
    Sample("mean.dim", "x: b 6 10", "(x, [-1], True)", free="x[1]", sums="x[2]", passes="x"),
    Sample("mean.dim", "x: 4 6 10", "(x, [0, 2])", free="x[1]", sums="x[0] x[2]", passes="x", note="several"),
    Sample("mean", N, "(x)", sums=ALL, passes="x"),
    *along("nansum", "(x, [1])", sums="x[1]"),
    *along("count_nonzero", "(x, 1)", inputs="x: 4 6 10 int", sums="x[1]"),
    *along("count_nonzero.dim_IntList", "(x, [1])", inputs="x: 4 6 10 int", sums="x[1]"),
    *along("amax amin logsumexp", "(x, [1])"),
    *along("any.dim all.dim", "(x, 1, True)", inputs="x: 4 6 10 bool"),
    *along("any.dims all.dims", "(x, [1])", inputs="x: 4 6 10 bool"),
    *along("any all", "(x)", inputs="x: 4 6 10 bool", free=""),
    *along("max min prod median var std norm.Scalar", "(x)", free=""),
    *along("prod.dim_int", "(x, 1)"),
    *along("norm.ScalarOpt_dim", "(x, 2, [1])"),
    *along("linalg_vector_norm", "(x, 2, [1], True)"),
    *along("var.dim std.dim var_mean.dim std_mean.dim", "(x, [1])"),
    *along("var.correction std.correction var_mean.correction std_mean.correction", "(x, [1], correction=0)"),
    *along("aminmax", "(x, dim=1)"),
    # losses
    *along("mse_loss l1_loss smooth_l1_loss huber_loss", "(x, z)", inputs=BOTH, sums=ALL, free=""),
    *along("soft_margin_loss", "(x, z.detach())", inputs=BOTH, sums=ALL, free=""),
    *along("mse_loss", "(x, z, 2)", inputs=BOTH, sums=ALL, free="", note="sum"),
    *along("mse_loss", "(x, z, 0)", inputs=BOTH, free=ALL, note="of each"),
    *along("mse_loss", "(x, z)", inputs="x: 4 6 10, z: 6 10", free="", note="broadcast"),
    *along("kl_div", "(x, z, 2, log_target=True)", inputs=BOTH, sums=ALL, free=""),
    Sample("binary_cross_entropy", "x: 4 6, z: 4 6",
           "aten.binary_cross_entropy.default(x.sigmoid(), z.sigmoid())", sums="t0[0] t0[1]"),
    Sample("binary_cross_entropy_with_logits", "x: 4 6, z: 4 6", "(x, z)", sums="x[0] x[1]",
           values={"z": (0, 1)}),
]  # fmt: skip
