"""One rank's ONNX model of the program of all ranks. Weights are named, not copied: their bytes lie beside it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tpcompile.graph.local import CollectiveCall, LocalNode, LocalProgram, LocalSize, LocalWeight, PerRank, Placed
from tpcompile.graph.program import Program, Region, Value
from tpcompile.graph.scopes import renamed, subgraphs
from tpcompile.graph.tensors import ONNX_DTYPES
from tpcompile.targets.collectives import DOMAIN, OP_TYPE, VERSION, make_collective
from tpcompile.weights.checksum import KEY as CHECKSUM
from tpcompile.weights.layout import Location
from tpcompile.weights.ranges import Part, is_whole, local_shape, take
from tpcompile.weights.widths import bits_of, bytes_of, pack, unpack

Places = Mapping[str, tuple[Location, str]]
INLINE_BYTES = 4096
"""Stored tensors smaller than this stay inside the model file: a page of their own would be larger than they are."""


def rank_model(
    source: onnx.ModelProto,
    program: Program,
    local: LocalProgram,
    rank: int,
    places: Places,
    inline: Mapping[str, bytes],
) -> onnx.ModelProto:
    """The model of one rank.

    Args:
        source: the model that was compiled, for versions and metadata.
        program: its graph, for inputs and outputs.
        local: the program of all ranks.
        rank: which one.
        places: where each large stored tensor of this rank lies, and the checksum of what lies there.
        inline: the bytes of the small ones.
    """
    model = onnx.ModelProto(
        ir_version=max(source.ir_version, 8),
        producer_name="tpcompile",
        domain=source.domain,
        model_version=source.model_version,
    )
    for domain, version in program.opsets.items():
        model.opset_import.append(helper.make_opsetid(domain, version))
    model.opset_import.append(helper.make_opsetid(DOMAIN, VERSION))
    model.metadata_props.extend(source.metadata_props)
    graph = model.graph
    graph.name = f"{source.graph.name or 'graph'}_rank{rank}"
    declared = {info.name: info for info in (*source.graph.input, *source.graph.output)}
    for values, target in ((program.inputs, graph.input), (program.outputs, graph.output)):
        for value in values:
            target.append(_door(declared[value.name], local.doors.get(value.name), rank))
    for weight in local.weights:
        graph.initializer.append(_stored(weight, rank, places, inline))
    for constant in local.constants:
        graph.initializer.append(onnx.numpy_helper.from_array(constant.arrays[rank], constant.name))
    GraphFiller(local, rank, source.graph, {value.name for value in program.outputs}).fill(graph, None)
    if local.placed:
        graph.metadata_props.append(
            onnx.StringStringEntryProto(
                key="tpcompile.placements",
                value=json.dumps({name: _placement(place) for name, place in sorted(local.placed.items())}),
            )
        )
    return model


def _types(source: onnx.GraphProto, nodes: Sequence[LocalNode], doors: Container[str]) -> Iterator[onnx.ValueInfoProto]:
    """The types, as the source has them, of inner results of operators that onnx knows no types of."""
    told = {info.name: info.type.tensor_type.elem_type for info in (*source.value_info, *source.output)}
    for node in nodes:
        if node.origin is not None and node.domain != "":
            for name, original in zip(node.outputs, node.origin.output, strict=True):
                if name and name not in doors and told.get(original):
                    yield helper.make_tensor_value_info(name, told[original], None)


class GraphFiller:
    """Puts the nodes of a rank into the graphs they belong to, with the types of what collectives make."""

    def __init__(self, local: LocalProgram, rank: int, source: onnx.GraphProto, outputs: set[str]) -> None:
        self.rank, self.source, self.outputs = rank, source, outputs
        self.nodes: dict[Region | None, list[LocalNode]] = defaultdict(list)
        self.calls: dict[Region | None, list[CollectiveCall]] = defaultdict(list)
        for node in local.nodes:
            self.nodes[node.region].append(node)
        for call in local.collectives:
            self.calls[call.node.region].append(call)

    def fill(self, graph: onnx.GraphProto, region: Region | None) -> None:
        """Add the nodes of a region to its graph."""
        for node in self.nodes[region]:
            graph.node.append(self.branching(node) if node.regions else _node(node, self.rank))
        for call in self.calls[region]:
            name = call.node.outputs[0]
            if name not in self.outputs:
                graph.value_info.append(_info(name, call.dtype, call.shapes[self.rank]))
        graph.value_info.extend(_types(self.source, self.nodes[region], self.outputs))

    def branching(self, node: LocalNode) -> onnx.NodeProto:
        """An If with its branches."""
        proto, count = _node(node, self.rank), len(node.outputs)
        del proto.input[1:]
        for k, region in enumerate(node.regions):
            graph = onnx.GraphProto(name=f"{node.name}.{region.branch}")
            self.fill(graph, region)
            ends = node.inputs[1 + k * count : 1 + (k + 1) * count]
            for end, output in zip(ends, node.outputs, strict=True):
                # a branch makes each of its outputs itself, under a name that nothing else has
                name = f"{output or node.name}.{region.branch}.{len(graph.output)}"
                graph.node.append(helper.make_node("Identity", [end], [name]))
                graph.output.add(name=name)
            proto.attribute.append(helper.make_attribute(region.branch, graph))
        return proto


def _placement(place: Placed) -> dict[str, Any]:
    found: dict[str, Any] = {"partial": [list(group) for group in place.partial]} if place.partial else {}
    if place.ranges:
        found |= {"axis": place.axis, "ranges": [[list(r) for r in ranges] for ranges in place.ranges]}
    return found


def _door(info: onnx.ValueInfoProto, place: Placed | None, rank: int) -> onnx.ValueInfoProto:
    """An input or output as the source declares it; only a cut axis gets this rank's own size."""
    found = onnx.ValueInfoProto()
    found.CopyFrom(info)
    if place is not None:
        found.type.tensor_type.shape.dim[place.axis].dim_value = sum(stop - start for start, stop in place.ranges[rank])
    return found


def _info(name: str, dtype: str, shape: Sequence[LocalSize]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ONNX_DTYPES[dtype], list(shape))


def _stored(weight: LocalWeight, rank: int, places: Places, inline: Mapping[str, bytes]) -> TensorProto:
    part = weight.parts[rank]
    tensor = TensorProto(
        name=weight.name, data_type=ONNX_DTYPES[weight.weight.dtype], dims=local_shape(weight.weight.shape, part)
    )
    if weight.name in places:
        place, checksum = places[weight.name]
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in (("location", place.file), ("offset", str(place.offset)), ("length", str(place.length))):
            tensor.external_data.add(key=key, value=text)
        tensor.metadata_props.add(key=CHECKSUM, value=checksum)
    else:
        tensor.raw_data = inline[weight.name]
    if not is_whole(weight.weight.shape, part):
        ranges = [None if axis is None else [list(r) for r in axis] for axis in part.axes]
        tensor.metadata_props.add(key="tpcompile.ranges", value=json.dumps(ranges))
    if rank in weight.zeroed:
        tensor.metadata_props.add(key="tpcompile.zeroed", value="1")
    if weight.name != weight.weight.name:
        tensor.metadata_props.add(key="tpcompile.source", value=weight.weight.name)
    return tensor


def _node(node: LocalNode, rank: int) -> onnx.NodeProto:
    attributes = {
        name: value.values[rank] if isinstance(value, PerRank) else value for name, value in node.attributes.items()
    }
    if node.op == "Cast" and node.origin is None:
        attributes["to"] = ONNX_DTYPES[attributes["to"]]
    if node.op == OP_TYPE:
        op = attributes.pop("collective_operation")
        return make_collective(op, node.inputs[0], node.outputs[0], name=node.name, **attributes)
    proto = onnx.NodeProto()
    if node.origin is not None:
        proto.CopyFrom(node.origin)
        _drop_annotations(proto)
        if node.dropped or node.attributes:
            kept = [a for a in proto.attribute if a.name not in node.dropped and a.name not in node.attributes]
            del proto.attribute[:]
            proto.attribute.extend(kept)
        del proto.input[:]
        del proto.output[:]
    proto.op_type, proto.domain, proto.name = node.op, node.domain, node.name
    proto.input.extend(node.inputs)
    proto.output.extend(node.outputs)
    proto.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    if node.renamed:
        for graph in subgraphs(proto):
            graph.CopyFrom(renamed(graph, node.renamed))
    return proto


def _drop_annotations(proto: onnx.NodeProto) -> None:
    """What the source says of many devices holds for no rank's own part."""
    proto.ClearField("device_configurations")
    for graph in subgraphs(proto):
        for node in graph.node:
            _drop_annotations(node)


def inline_bytes(weight: LocalWeight, data: bytes, rank: int) -> bytes:
    """This rank's part of a small stored tensor."""
    part, shape = weight.parts[rank], weight.weight.shape
    bits = bits_of(weight.weight.dtype, weight.name)
    if rank in weight.zeroed:
        return bytes(bytes_of(bits, local_shape(shape, part)))
    if is_whole(shape, part):
        return data
    flat = np.frombuffer(data, np.uint8)
    if bits < 8:
        return pack(take(unpack(flat, bits, math.prod(shape)).reshape(shape), part), bits).tobytes()
    return take(flat.reshape(*shape, bits // 8), Part((*part.axes, None))).tobytes()


def declared_shape(value: Value, info: onnx.ValueInfoProto) -> list[int | str | None]:
    """A door's shape as the source spells it."""
    if not info.type.tensor_type.HasField("shape"):
        return []
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in info.type.tensor_type.shape.dim]
