"""Operators on images and signals: channels are free, space needs whole."""

from collections.abc import Sequence

from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation


def per_channel(op: Relation, why: str) -> None:
    """Batch and channels line up, everything behind them needs whole."""
    x, y = op.input(0), op.output()
    op.pair(x[0], y[0])
    op.pair(x[1], y[1])
    for dim in (*x[2:], *y[2:]):
        op.whole(dim, why)


@rule("MaxPool GlobalMaxPool LpPool GlobalLpPool")
def pool(op: Relation) -> None:
    """Each channel by itself."""
    if len(op.node.outputs) > 1 and op.node.outputs[1] is not None:
        raise NotCovered("indices of maxima count all channels")
    per_channel(op, "a pool needs its neighbours")


@rule("AveragePool GlobalAveragePool", linear=(0,))
def average_pool(op: Relation) -> None:
    """Each channel by itself; partial sums pass, and get smaller."""
    per_channel(op, "a pool needs its neighbours")


@rule("RoiAlign", "i c h w, r f, r -> r c p q", whole="i h w f p q", why="a region may lie anywhere in any image")
def roi_align(op: Relation) -> None:
    """Each channel and each region by itself."""


@rule("CausalConvWithState", "b c s, c u k, c, b c t -> b c s, b c t", whole="s u k t", why="positions look back")
def causal_conv(op: Relation) -> None:
    """Each channel by itself, in the weight, the bias and the state as well."""


@rule("BatchNormalization")
def batch_norm(op: Relation) -> None:
    """With stored statistics an affine function of each channel."""
    if op.node.attribute("training_mode", 0) or any(output is not None for output in op.node.outputs[1:]):
        raise NotCovered("it computes the statistics of the batch")
    op.same(0)
    for k in range(1, 5):
        op.pair(op.input(k)[0], op.input(0)[1])


@rule("LRN")
def local_response(op: Relation) -> None:
    """Channels look at their neighbours."""
    op.same(0)
    op.whole(op.input(0)[1], "LRN looks at neighbouring channels")


@rule("Resize")
def resize(op: Relation) -> None:
    """Axes that keep their size line up, the others need whole. Sums are reduced while the image is small."""
    if op.node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise NotCovered("it crops")
    if op.node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotCovered("its sizes depend on each other")
    x, y = op.input(0), op.output()
    scales = op.known(2)
    chosen = [int(axis) % len(x) for axis in op.node.attribute("axes") or range(len(x))]
    for axis, (dim, out) in enumerate(zip(x, y, strict=True)):
        scaled = axis in chosen and scales is not None and any(s.size and s[chosen.index(axis)] != 1 for s in scales)
        if dim.sizes == out.sizes and not scaled:
            op.pair(dim, out)
        else:
            op.whole(dim, "resized")
            op.whole(out, "resized")
    if op.has(2) and scales is None and not op.has(3):
        raise NotCovered("its scales are computed")
    if op.has(3):
        op.scaled_shape(3, [y[axis] for axis in chosen])


@rule("DepthToSpace", linear=(0,))
def depth_to_space(op: Relation) -> None:
    """Channels are blocks of space: outer factors in mode DCR, inner ones in CRD."""
    x, y = op.input(0), op.output()
    blocks = _blocks(op, x)
    crd = op.node.attribute("mode", "DCR") == "CRD"
    op.pair(x[1], op.product(y[1], *blocks) if crd else op.product(*blocks, y[1]))
    _space(op, x, y)


@rule("SpaceToDepth", linear=(0,))
def space_to_depth(op: Relation) -> None:
    """Blocks of space become the outer factors of the channels."""
    x, y = op.input(0), op.output()
    op.pair(op.product(*_blocks(op, x), x[1]), y[1])
    _space(op, x, y)


def _blocks(op: Relation, x: Sequence[Dim]) -> list[Dim]:
    size = op.node.attribute("blocksize")
    blocks = [Dim((size,) * len(x[0].sizes)) for _ in range(2)]
    for block in blocks:
        op.whole(block, "space within a block")
    return blocks


def _space(op: Relation, x: Sequence[Dim], y: Sequence[Dim]) -> None:
    op.pair(x[0], y[0])
    for dim in (*x[2:], *y[2:]):
        op.whole(dim, "space in blocks")


@rule("GridSample")
def grid_sample(op: Relation) -> None:
    """Each place of the grid picks among all of space, alike for each channel."""
    x, grid, y = op.input(0), op.input(1), op.output()
    op.pair(x[0], y[0])
    op.pair(grid[0], y[0])
    op.pair(x[1], y[1])
    for dim in (*x[2:], grid[-1]):
        op.whole(dim, "space that a grid samples")
    for dim, out in zip(grid[1:-1], y[2:], strict=True):
        op.pair(dim, out)
