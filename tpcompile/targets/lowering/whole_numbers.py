"""Computed numbers of 8 bits and other small types, held as float32 in a lowered model.

TensorRT computes with int8 only between a QuantizeLinear and a DequantizeLinear without zero points, and with uint8 not
at all. As float32 every such number is exact; so are products of them summed up to 2²⁴, and their sums in int32.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

from tpcompile.graph.contents import ONNX_DOMAINS
from tpcompile.graph.scopes import subgraphs
from tpcompile.graph.tensors import ONNX_DTYPES
from tpcompile.targets.lowering.packed import signed_codes
from tpcompile.targets.lowering.registry import NotLowered
from tpcompile.targets.lowering.site import Site, Store
from tpcompile.targets.lowering.types import ValueTypes

NARROW = {
    "uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767),
    "uint4": (0, 15), "int4": (-8, 7), "uint2": (0, 3), "int2": (-2, 1),
}  # fmt: skip
"""Types that are held as float32, with their range."""
MOVES = frozenset(
    ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Split", "Slice", "Gather", "Expand", "Tile",
     "Identity", "MaxPool", "Pad", "Where", "Max", "Min", "If", "DistCollective", "GatherND", "GatherElements",
     "DepthToSpace", "SpaceToDepth", "Shape", "Size", "Cast", "ScatterND", "ScatterElements", "Equal", "Relu", "Clip")
)  # fmt: skip
"""What does the same on float32."""
QUANTISED = frozenset(
    ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearMatMul",
     "QLinearConv", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm", "QAttention", "QLinearAdd", "QLinearMul",
     "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearGlobalAveragePool", "QLinearConcat")
)  # fmt: skip
"""What is lowered to computation with float32."""
FEW = 1024
"""Stored numbers up to this many are stored as float32 instead."""


def held_as_floats(model: onnx.ModelProto, types: ValueTypes, store: Store) -> frozenset[str]:
    """Names of the values that a lowered model holds as float32; none where anything else computes with them."""
    narrow, readers = set(), dict[str, list[NodeProto]]()
    made: dict[str, NodeProto] = {}
    for node in _nodes(model.graph):
        for name in node.input:
            readers.setdefault(name, []).append(node)
        for name in node.output:
            made[name] = node
    for name in (*made, *(info.name for info in model.graph.input)):
        if name and types.dtype(name) in NARROW and name not in store.tensors:
            narrow.add(name)
    outputs = {info.name for info in model.graph.output}
    for name in [name for name in narrow if types.dtype(name) == "int8" and name not in outputs]:
        around = [*readers.get(name, ()), *([made[name]] if name in made else [])]
        if all(symmetric(node, types, store) for node in around):
            narrow.remove(name)
    for node in _nodes(model.graph):
        if narrow & {*node.input, *node.output} and node.op_type not in MOVES | QUANTISED:
            return frozenset()
    return frozenset(narrow)


def symmetric(node: NodeProto, types: ValueTypes, store: Store) -> bool:
    """Whether TensorRT itself quantises or dequantises so: int8 without zero points, by stored scales above 0."""
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return False
    scale, zero = (node.input[k] if k < len(node.input) else "" for k in (1, 2))
    codes = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
    if types.dtype(codes) != "int8" or any(entry.name == "block_size" and entry.i for entry in node.attribute):
        return False
    if scale not in store.tensors or not (store.array(scale) > 0).all():
        return False
    return not zero or (zero in store.tensors and not store.array(zero).any())


def numbers(site: Site, name: str) -> str:
    """The numbers of a value of a narrow type, as float32."""
    if name in site.floats and not site.is_stored(name):
        return name
    kind = site.dtype(name)
    if not site.is_stored(name):
        raise NotLowered(f"'{name}' is {kind}, and something else computes with such numbers")
    array = site.stored(name)
    if array.size <= FEW:
        return site.constant(array.astype(np.float32), "float32")
    one = site.constant(1, "float32")
    if kind in ("int8", "int4"):
        return site.emit("DequantizeLinear", [name, one])
    if kind not in ("uint8", "uint4"):
        raise NotLowered(f"'{name}' is stored as {kind}")
    codes = signed_codes(site, name, int(kind[4:]), array.shape, 1)
    middle = site.constant((NARROW[kind][1] + 1) // 2, "float32")
    return site.emit("Add", [site.emit("DequantizeLinear", [codes, one]), middle])


def centred(site: Site, index: int, zero: int) -> str:
    """Operand `index` less its zero point, which is operand `zero` if there is one."""
    x = numbers(site, site.input(index))
    if not site.has(zero) or _is_zero(site, site.input(zero)):
        return x
    return site.emit("Sub", [x, numbers(site, site.input(zero))])


def dequantised(site: Site, index: int, scale: int, zero: int) -> str:
    """(operand - zero point) · scale in float32."""
    return site.emit("Mul", [centred(site, index, zero), site.wide(site.input(scale))])


def quantised(site: Site, x: str, zero: str | None, kind: str) -> str:
    """float32 that was divided by its scale, as numbers of a narrow type."""
    if site.node.output[0] not in site.floats:
        raise NotLowered("something else computes with such numbers")
    y = site.emit("Round", [x])
    if zero is not None and not _is_zero(site, zero):
        y = site.emit("Add", [y, numbers(site, zero)])
    low, high = NARROW[kind]
    return site.emit("Clip", [y, site.constant(low, "float32"), site.constant(high, "float32")])


def move(site: Site) -> list[str | None] | None:
    """A node that moves numbers held as float32, its stored operands alike; None where that is what it does already."""
    if not site.floats & {*site.node.input, *site.node.output}:
        return None
    given = [
        numbers(site, name) if name and site.is_stored(name) and site.dtype(name) in NARROW else name
        for name in site.node.input
    ]
    if given == list(site.node.input):
        return None
    attributes = {entry.name: site.attribute(entry.name) for entry in site.node.attribute}
    return list(
        site.emit_several(site.node.op_type, given, len(site.node.output), domain=site.node.domain, **attributes)
    )


def at_the_edges(graph: onnx.GraphProto, floats: frozenset[str], types: ValueTypes, store: Store) -> None:
    """Inputs and outputs keep their types: they are converted where they enter and leave."""
    if not floats:
        return
    before, after, names = [], [], dict[str, str]()
    for info in (*graph.input, *graph.output):
        if info.name not in floats:
            continue
        inside = names[info.name] = store.name(f"{info.name}.numbers")
        kind = types.dtype(info.name) or ""
        if kind == "int8":
            one = store.add(f"{info.name}.one", np.array(1, np.float32))
            if any(info.name == given.name for given in graph.input):
                before.append(helper.make_node("DequantizeLinear", [info.name, one], [inside], name=inside))
            else:
                zero = store.add(f"{info.name}.zero", np.array(0, np.int8))
                after.append(helper.make_node("QuantizeLinear", [inside, one, zero], [info.name], name=inside))
        elif any(info.name == given.name for given in graph.input):
            before.append(helper.make_node("Cast", [info.name], [inside], name=inside, to=TensorProto.FLOAT))
        else:
            after.append(helper.make_node("Cast", [inside], [info.name], name=inside, to=ONNX_DTYPES[kind]))
    for node in _nodes(graph):
        for field in (node.input, node.output):
            for position, name in enumerate(field):
                field[position] = names.get(name, name)
    for inner in _graphs(graph):
        for info in (*inner.value_info, *(() if inner is graph else (*inner.input, *inner.output))):
            if info.name in floats:
                info.type.tensor_type.elem_type = TensorProto.FLOAT
                info.name = names.get(info.name, info.name)
    kept = [NodeProto.FromString(node.SerializeToString()) for node in (*before, *graph.node, *after)]
    graph.ClearField("node")
    graph.node.extend(kept)


def _is_zero(site: Site, zero: str) -> bool:
    return site.is_stored(zero) and not site.stored(zero).any()


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _graphs(inner)


def _nodes(graph: onnx.GraphProto) -> Iterator[NodeProto]:
    for inner in _graphs(graph):
        yield from inner.node


def is_move(node: NodeProto) -> bool:
    """Whether a node does the same on float32."""
    return node.op_type in MOVES and (node.domain in ONNX_DOMAINS or node.op_type == "DistCollective")
