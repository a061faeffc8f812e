"""Compile a decoder, run all its ranks beside the source, and hold the bundle against what cutting by hand gives."""

from __future__ import annotations

import math
from pathlib import Path

import onnx

import tpcompile
from tests.degrees.decoders import Decoder, decoder, feeds
from tests.degrees.megatron import collectives, heads_suffice, largest_rank
from tests.one_graph import OneGraph, difference, session

LIMIT = 3e-5
RUNS = [(1, 4, 2), (2, 1, 3), (2, 3, 0)]
"""(batch, new tokens, past tokens)."""


def faults(shape: Decoder, tp: int, folder: Path) -> list[str]:
    """What is wrong with a decoder on `tp` ranks: numbers, shapes, heads in pieces, too many weights or collectives."""
    source = decoder(shape)
    tpcompile.compile(source, tp, folder, force=True)
    ranks = OneGraph(folder)
    found = numbers(shape, source, ranks)
    if heads_suffice(shape, tp):
        found += [*states(shape, ranks), *heads(shape, folder, ranks)]
    most, bar = max(map(elements, stored(folder, ranks))), largest_rank(shape, tp)
    if most > bar * 1.02:
        found.append(f"{most} elements on the largest rank, by hand {bar}")
    calls, by_hand = sum(ranks.collectives.values()), collectives(shape, tp)
    if calls > by_hand:
        found.append(f"{dict(ranks.collectives)}, by hand {by_hand}")
    return found


def numbers(shape: Decoder, source: onnx.ModelProto, ranks: OneGraph) -> list[str]:
    reference, found = session(source.SerializeToString()), []
    names = [output.name for output in source.graph.output]
    for batch, length, past in RUNS if shape.caches else [(2, 4, 0), (1, 1, 0)]:
        fed = feeds(shape, batch, length, past)
        wanted, got = dict(zip(names, reference.run(names, fed), strict=True)), ranks.run(fed)
        assert list(got) == names
        errors = {name: difference(wanted[name], got[name]) for name in names}
        found += [f"{name} is off by {error:.1e}" for name, error in errors.items() if error > LIMIT]
    return found


def states(shape: Decoder, ranks: OneGraph) -> list[str]:
    """Both ends of a cache lie alike, along whole heads that all ranks together cover."""
    found, manifest = [], ranks.manifest
    if shape.caches and len(manifest["state"]) != 2 * shape.layers:
        found.append(f"{len(manifest['state'])} states")
    for state in manifest["state"]:
        place, other = (
            manifest["inputs"][state["input"]]["placement"],
            manifest["outputs"][state["output"]]["placement"],
        )
        if place != other:
            found.append(f"{state['input']} lies as {place}, {state['output']} as {other}")
        if place is None:
            continue
        held = [index for ranges in place["ranges"] for low, high in ranges for index in range(low, high)]
        if place["axis"] != 1 or set(held) != set(range(shape.kv_heads)):
            found.append(f"{state['input']}: {place}")
    return found


def stored(folder: Path, ranks: OneGraph) -> list[dict[str, list[int]]]:
    """Each rank's weights and their shapes; its indices and sizes left out."""
    models = [onnx.load(folder / rank["model"], load_external_data=False) for rank in ranks.manifest["ranks"]]
    return [
        {w.name: list(w.dims) for w in model.graph.initializer if w.data_type == onnx.TensorProto.FLOAT}
        for model in models
    ]


def elements(weights: dict[str, list[int]]) -> int:
    return sum(math.prod(sizes) for sizes in weights.values())


def heads(shape: Decoder, folder: Path, ranks: OneGraph) -> list[str]:
    """Every rank holds whole heads, and as many queries for each of its key heads."""
    found = []
    for rank, sizes in enumerate(stored(folder, ranks)):
        for layer in range(shape.layers):
            queries = sizes[f"{layer}.o.w"][0] / shape.head_size
            if f"{layer}.k.w" in sizes:
                keys = sizes[f"{layer}.k.w"][1] / shape.head_size
            else:
                keys = (sizes[f"{layer}.qkv.w"][1] / shape.head_size - queries) / 2
            if queries % 1 or keys % 1 or queries % keys:
                found.append(f"rank {rank} has {queries} query heads on {keys} key heads")
    return found
