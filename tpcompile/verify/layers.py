"""`verify --layers K`: the graphs up to the end of the K-th layer, layers being what repeats among the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import onnx

from tpcompile.bundle.manifest import IOEntry
from tpcompile.errors import refuse
from tpcompile.graph.scopes import read_names
from tpcompile.verify.files import Bundle, ModelFile

SMALL = 4096


def first_layers(bundle: Bundle, source: ModelFile, count: int) -> tuple[Bundle, ModelFile]:
    """The bundle and its source up to the first weight of layer `count`; both as they are where there are no more.

    What crosses the cut under one name in all files is an output of the shorter graphs, beside the outputs made so far.

    Raises:
        Refused: TP507 no layers are found, or fewer than one is asked for.
    """
    weights = _large_weights(source)
    start, period, times = _repetition([shape for _, shape in weights])
    if times < 2 or count < 1:
        fact = f"asks for {count} layers, and {times if times > 1 else 'no repeated'} layers are found"
        raise refuse("TP507", f"--layers {count}", fact, "Verify all of it, with --memory where it is large")
    if count >= times:
        return bundle, source
    mark = weights[start + count * period][0]
    cuts = [_position(model, mark) for model in (source, *bundle.ranks)]
    made = [_made(model.graph.node[:at]) for model, at in zip((source, *bundle.ranks), cuts, strict=True)]
    kept = [value.name for value in source.graph.output if value.name in made[0]]
    later = {name for node in source.graph.node[cuts[0] :] for name in read_names(node)}
    crossing = [
        name
        for name in made[0]
        if name in later and name not in kept and all(name in mine and name not in bundle.declared[0] for mine in made)
    ]
    outputs = {name: bundle.manifest.outputs[name] for name in kept if name in bundle.manifest.outputs}
    outputs |= {name: IOEntry("float32", ()) for name in crossing}
    shorter = [_cut(model, at, [*kept, *crossing]) for model, at in zip((source, *bundle.ranks), cuts, strict=True)]
    manifest = replace(bundle.manifest, outputs=outputs, state=(), roles={})
    return replace(bundle, manifest=manifest, ranks=tuple(shorter[1:])), shorter[0]


def _large_weights(source: ModelFile) -> list[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Name and kind (operator and shape) of each large weight, in the order in which nodes read them first."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for node in source.graph.node:
        for name in node.input:
            tensor = source.tensors.get(name)
            if tensor is not None and len(tensor.dims) > 1 and math.prod(tensor.dims) >= SMALL and name not in found:
                found[name] = (node.op_type, tuple(tensor.dims))
    return list(found.items())


def _repetition(kinds: Sequence[object]) -> tuple[int, int, int]:
    """Where the longest repetition begins, its period, and how often it is there; the shortest period of equals."""
    best = (0, 1, 1)
    for period in range(1, len(kinds) // 2 + 1):
        for start in range(len(kinds) - period):
            times = 1
            while kinds[start + times * period :][:period] == kinds[start : start + period]:
                times += 1
            if times > 1 and times * period > best[1] * best[2]:
                best = start, period, times
    return best if best[2] > 1 else (0, 1, 1)


def _position(model: ModelFile, mark: str) -> int:
    """Before which node the graph is cut: the first that reads the weight, or a part of it."""
    for at, node in enumerate(model.graph.node):
        for name in node.input:
            tensor = model.tensors.get(name)
            said = [entry.value for entry in tensor.metadata_props if entry.key == "tpcompile.source"] if tensor else []
            if tensor is not None and (said[0] if said else name) == mark:
                return at
    raise refuse("TP507", model.name, f"has no node that reads {mark!r}", "Verify all of it, without --layers")


def _made(nodes: Sequence[onnx.NodeProto]) -> dict[str, None]:
    return dict.fromkeys(name for node in nodes for name in node.output if name)


def _cut(model: ModelFile, at: int, outputs: Sequence[str]) -> ModelFile:
    """The first `at` nodes with the weights that they read."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    del graph.node[at:]
    read = {name for node in graph.node for name in read_names(node)}
    known = {value.name: value for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name in read or value.name not in stored]
    shorter = onnx.GraphProto(
        name=graph.name, node=graph.node, initializer=kept, input=inputs, metadata_props=graph.metadata_props,
        output=[known.get(name, onnx.ValueInfoProto(name=name)) for name in outputs],
    )  # fmt: skip
    graph.CopyFrom(shorter)
    return replace(model, proto=proto)
