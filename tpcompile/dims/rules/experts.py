"""Mixtures of experts as single operators: cut inside the experts, so that every rank has a part of each."""

from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.dims.rules.in_blocks import PACKED
from tpcompile.dims.rules.quantized import MICROSOFT, WITHIN_BLOCK

EXPERTS = "each token chooses among all experts"
HIDDEN = "an expert reads and makes whole tokens"
GATED = "a gate stands beside what it gates"


@rule("MoE", domain=MICROSOFT)
def experts(op: Relation) -> None:
    """The features inside experts are columns of fc1 and fc3 and rows of fc2: a partial sum, fc2's bias once."""
    _tokens(op, 1)
    inner = op.input(4)[2]
    columns = _columns(op, inner, op.input(2)[1].size)
    for index in (2, 3):
        _of_expert(op, index, columns)
    for index in (6, 7):
        _of_expert(op, index, inner)
    _of_expert(op, 4, None, inner)
    _of_expert(op, 5)
    op.sums(inner)
    op.once = frozenset((5,)) if op.has(5) else frozenset()


@rule("QMoE", domain=MICROSOFT)
def quantized_experts(op: Relation) -> None:
    """As MoE with weights of few bits: rows of fc2 are cut between the blocks of its scales, and between bytes."""
    common, length = op.node.attribute("expert_weight_bits", 4), op.node.attribute("block_size", 0)
    bits = [op.node.attribute(f"fc{k}_expert_weight_bits", common) for k in (1, 2, 3)]
    if op.node.attribute("quant_type", "int") != "int" or set(bits) - {2, 4, 8} or any(map(op.has, range(15, 21))):
        raise NotCovered("its weights are no integers of 2, 4 or 8 bits")
    if op.node.attribute("weights_prepacked", -1) == 1:
        raise NotCovered("its weights are packed for one kind of device")
    _tokens(op, 1, 14)
    packed = op.input(5)[2]
    inner = Dim(tuple(size * 8 // bits[1] for size in packed.sizes))
    total = op.input(2)[1].size
    for weight, zeros, columns, per_byte in ((2, 11, total, 8 // bits[0]), (8, 13, inner.size, 8 // bits[2])):
        for index in (weight, weight + 1, weight + 2):
            _of_expert(op, index, _columns(op, inner, columns))
        if op.has(zeros):
            in_bytes = 1 if len(op.input(zeros)) == 3 else per_byte
            _of_expert(op, zeros, _columns(op, inner, columns, in_bytes))
    _of_expert(op, 5, None, op.blocks(inner, 8 // bits[1], PACKED))
    if length:
        count = op.blocks(inner, length, WITHIN_BLOCK)
        _of_expert(op, 6, None, count)
        if op.has(12):
            _of_expert(op, 12, None, op.blocks(count, 8 // bits[1], PACKED))
    else:
        _of_expert(op, 6)
        _of_expert(op, 12)
    _of_expert(op, 7)
    op.sums(inner)
    op.once = frozenset((7,)) if op.has(7) else frozenset()


def _tokens(op: Relation, *routers: int) -> None:
    """Tokens are free, if there is one row of the router for each; their features need whole."""
    x = op.input(0)
    op.same(0)
    op.whole(x[-1], HIDDEN)
    for router in routers:
        if op.has(router):
            op.pair_products(x[:-1], op.input(router)[:1])
            op.whole(op.input(router)[1], EXPERTS)


def _columns(op: Relation, inner: Dim, total: int, per_byte: int = 1) -> Dim:
    """The columns of fc1 or fc3, `per_byte` to an element: `inner`, or gates and what they gate side by side."""
    if total == inner.size:
        return op.blocks(inner, per_byte, PACKED)
    fusion = op.node.attribute("swiglu_fusion", 0)
    if total != 2 * inner.size or fusion not in (1, 2):
        raise NotCovered("its gates are laid out in another way")
    if fusion == 2:
        half = op.blocks(inner, per_byte, PACKED)
        return op.concatenation(half, half)
    if per_byte > 1:
        return op.blocks(inner, per_byte // 2, PACKED)
    pair = Dim((2,) * len(inner.sizes))
    op.whole(pair, GATED)
    return op.product(inner, pair)


def _of_expert(op: Relation, index: int, *axes: Dim | None) -> None:
    """Operand [experts, ...] whose further axes are `axes`; those that are None or not said need whole."""
    if not op.has(index):
        return
    own = op.input(index)
    op.whole(own[0], EXPERTS)
    for dim, known in zip(own[1:], (*axes, *[None] * len(own)), strict=False):
        if known is None:
            op.whole(dim, HIDDEN)
        else:
            op.pair(dim, known)
