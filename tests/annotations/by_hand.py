"""Annotations written by hand, a line each, as the proposal's examples have them."""

from __future__ import annotations

import re

import onnx

from tests.plan.models import model


def annotated(graph: str, said: str, devices: int = 4, opset: int = 20) -> onnx.ModelProto:
    """A model with annotations of configuration "hand".

    Each line of `said` is a node (by its first output), a colon, then tensors between semicolons: the name, its axes as
    `axis/shards` (or `axis/size:shards×size:shards`), and after `@` its devices, groups in brackets, as in
    `x 0/2 @ [0 1] [2 3]`. Without `@` a tensor lies on all devices in order, copied where it has fewer shards.
    """
    found = model(graph, opset)
    found.ir_version = 11
    found.configuration.add(name="hand", num_devices=devices)
    nodes = {node.output[0]: node for node in found.graph.node}
    for line in filter(None, map(str.strip, said.splitlines())):
        name, _, tensors = line.partition(":")
        entry = nodes[name].device_configurations.add(configuration_id="hand")
        if stage := re.fullmatch(r"stage (-?\d+)", tensors.strip()):
            entry.pipeline_stage = int(stage[1])
            continue
        for text in filter(None, map(str.strip, tensors.split(";"))):
            specify(entry.sharding_spec.add(), text, devices)
    return found


def specify(spec: onnx.ShardingSpecProto, text: str, devices: int) -> None:
    said, _, places = text.partition("@")
    spec.tensor_name, *axes = said.split()
    shards = 1
    for axis in axes:
        number, _, parts = axis.partition("/")
        dim = spec.sharded_dim.add(axis=int(number))
        for part in parts.split("×"):
            size, colon, count = part.rpartition(":")
            simple = dim.simple_sharding.add(num_shards=int(count))
            if colon:
                simple.dim_value = int(size)
            shards *= int(count)
    if places:
        groups = [[int(d) for d in group.split()] for group in re.findall(r"\[([^]]*)\]", places)]
        groups = groups or [[int(d)] for d in places.split()]
    else:
        copies = max(devices // max(shards, 1), 1)
        groups = [list(range(k * copies, (k + 1) * copies)) for k in range(shards)]
    for group in groups:
        if len(group) == 1:
            spec.device.append(group[0])
        else:
            spec.device.append(-1 - len(spec.index_to_device_group_map))
            spec.index_to_device_group_map.add(key=spec.device[-1], value=group)
