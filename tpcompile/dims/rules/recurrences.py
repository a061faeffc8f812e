"""Operators that carry a state from step to step: channels and heads are free, time needs whole."""

from collections.abc import Sequence

from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.dims.rules.contractions import local_count
from tpcompile.dims.rules.fused import MICROSOFT

IN_TIME = "a state runs along it"
PART_OF_HEAD = "the state of a head needs it whole"
_EXTENSIONS = ("state_window", "state_length", "state_update_capacity", "input_channel_offset", "input_channels")


@rule("CausalConvWithState", domain=MICROSOFT)
def causal_conv(op: Relation) -> None:
    """Each channel has a kernel and a state of its own; channels come second, or last on one axis or several."""
    if any(op.node.attribute(name, 0) for name in _EXTENSIONS) or op.node.attribute("state_channels_last", -1) != -1:
        raise NotCovered("its state lies in a way of its own")
    x, weight, y = op.input(0), op.input(1), op.output()
    last = op.node.attribute("channels_last", 0)
    channels = x[2:] if last else x[1:2]
    for axes in (x, op.input(3) if op.has(3) else [], op.output(1) if _makes(op, 1) else []):
        for k, (dim, out) in enumerate(zip(axes, y, strict=bool(axes))):
            if k == 0 or (k > 1 if last else k == 1):
                op.pair(dim, out)
            else:
                op.whole(dim, IN_TIME)
                op.whole(out, IN_TIME)
    op.pair_products(channels, weight[:1])
    for dim in weight[1:]:
        op.whole(dim, "a kernel")
    if op.has(2):
        op.pair_products(channels, op.input(2))


@rule("LinearAttention")
@rule("LinearAttention", domain=MICROSOFT)
def linear_attention(op: Relation) -> None:
    """Heads are independent; of queries and keys, one may have several heads for each of the other's."""
    if op.node.attribute("state_window", 0):
        raise NotCovered("it keeps several states")
    counts = [op.node.attribute(name) for name in ("q_num_heads", "kv_num_heads")]
    few, many = min(counts), max(counts)
    if many % few:
        raise NotCovered("heads of queries are no multiple of those of keys, nor the other way round")
    q, k, v, y = op.input(0), op.input(1), op.input(2), op.output()
    shared, group, size, width = (
        Dim((n,) * len(y[2].sizes)) for n in (few, many // few, q[2].size // counts[0], y[2].size // many)
    )
    heads = op.product(shared, group)
    queries, keys = (heads if count == many else shared for count in counts)
    op.pair(q[2], op.product(queries, size))
    op.pair(k[2], op.product(keys if k[2].size == counts[1] * size.size else shared, size))
    op.pair(v[2], op.product(keys, width))
    op.pair(y[2], op.product(heads, width))
    for dim in (size, width):
        op.whole(dim, PART_OF_HEAD)
    for each in (4, 5):  # decay and update rate: for each head, or each of its features
        if op.has(each):
            gate = op.input(each)[2]
            per_head = gate.sizes == keys.sizes
            if not gate.unit:
                op.pair(gate, keys if per_head else op.product(keys, size))
    for operand in range(6):
        if op.has(operand) and operand != 3:
            _batch_and_time(op, op.input(operand), y)
    for state in (op.input(3) if op.has(3) else None, op.output(1) if _makes(op, 1) else None):
        if state is not None:
            op.pair(state[0], y[0])
            op.pair(state[1], keys)
            for dim in state[2:]:
                op.whole(dim, PART_OF_HEAD)
    op.local_attribute("q_num_heads", local_count(queries), queries)
    op.local_attribute("kv_num_heads", local_count(keys), keys)


def _batch_and_time(op: Relation, axes: Sequence[Dim], y: Sequence[Dim]) -> None:
    op.pair(axes[0], y[0])
    op.whole(axes[1], IN_TIME)
    op.whole(y[1], IN_TIME)


def _makes(op: Relation, index: int) -> bool:
    return index < len(op.node.outputs) and op.node.outputs[index] is not None


@rule("LinearAttentionGate", domain=MICROSOFT)
def linear_attention_gate(op: Relation) -> None:
    """Decay and update rate of each head by itself."""
    op.broadcast(*range(len(op.node.inputs)))
    if _makes(op, 1):
        op.same(0, 1)


@rule("GatedRMSNorm", domain=MICROSOFT)
def gated_norm(op: Relation) -> None:
    """Each head is normalised, scaled alike, and gated."""
    x, size = op.input(0), op.input(1)[0]
    op.same(0)
    op.same(2)
    if x[-1].size % size.size:
        raise NotCovered("its scale does not divide the last axis")
    heads = Dim((x[-1].size // size.size,) * len(size.sizes))
    op.pair(x[-1], op.product(heads, size))
    op.whole(size, "the norm is over it")
