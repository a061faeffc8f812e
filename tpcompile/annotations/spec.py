"""A tensor's ShardingSpecProto as a layout, and the other way; what is wrong with one in itself."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnx import ShardingSpecProto

from tpcompile.annotations.layout import Factor, Layout, layout

MOST_SHARDS = 2**40
"""More than any list of devices has."""
MOST_FACTORS = 64
"""Sizes that an axis may be said to be a product of: more of 2 or more are no size of a tensor."""
MOST_SHOWN = 8
"""Devices that a message lists; of more it says how many they are."""


@dataclass(frozen=True)
class Wrong:
    """What is wrong with an annotation: a code, the fact and what would work."""

    code: str
    fact: str
    remedy: str


def write_spec(tensor: str, found: Layout) -> ShardingSpecProto:
    """The annotation of a tensor that lies so; what several devices have alike is given to a group of them."""
    spec = ShardingSpecProto(tensor_name=tensor)
    groups: dict[int, list[int]] = defaultdict(list)
    for place, device in enumerate(found.devices):
        shard = 0
        for _, factors in found.axes:
            for factor in factors:
                shard = shard * factor.shards + (factor.held[place] if factor.held else 0)
        groups[shard].append(device)
    for shard in sorted(groups):
        if len(groups[shard]) == 1:
            spec.device.append(groups[shard][0])
        else:
            key = -1 - len(spec.index_to_device_group_map)
            spec.device.append(key)
            spec.index_to_device_group_map.add(key=key, value=groups[shard])
    for axis, factors in found.axes:
        dim = spec.sharded_dim.add(axis=axis)
        for factor in factors:
            simple = dim.simple_sharding.add(num_shards=factor.shards)
            if factor.size is not None:
                simple.dim_value = factor.size
    return spec


def read_spec(
    spec: ShardingSpecProto, sizes: Sequence[int | None] | None, devices: int
) -> tuple[Layout | None, list[Wrong]]:
    """The layout that an annotation says, and what is wrong with it; no layout where that leaves none.

    Args:
        spec: the annotation.
        sizes: of the tensor's axes, None for one that depends on inputs; None where the rank is not known.
        devices: how many the configuration has.
    """
    wrong = list(_wrong_devices(spec, devices))
    axes, faults = _axes(spec, sizes)
    wrong += faults
    if wrong:
        return None, wrong
    groups = {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
    holders = [groups.get(device, [device]) for device in spec.device]
    shards = [simple.shards for _, found in axes for simple in found if simple.shards > 1]
    total = 1
    for count in shards:
        total = min(total * count, MOST_SHARDS)
    if not holders and total == 1:
        return Layout(tuple(range(devices))), []
    if len(holders) != total and total > 1:
        product = " × ".join(map(str, shards)) + (f" = {total}" if len(shards) > 1 else "")
        said = product if total < MOST_SHARDS else f"{MOST_SHARDS} or more"
        fact = f"it has {said} shards for {len(holders)} {'device' if len(holders) == 1 else 'devices'}"
        remedy = "Name a device for each shard, or a group of devices that have it alike"
        return None, [Wrong("TP168", fact, remedy)]
    shard_of = {device: shard if total > 1 else 0 for shard, group in enumerate(holders) for device in group}
    ordered = sorted(shard_of)
    placed: list[tuple[int, list[Factor]]] = []
    below = total
    for axis, found in axes:
        factors = []
        for factor in found:
            below //= factor.shards
            held = tuple(shard_of[device] // below % factor.shards for device in ordered) if factor.shards > 1 else ()
            factors.append(Factor(factor.size, factor.shards, held))
        placed.append((axis, factors))
    return layout(ordered, placed), []


def _wrong_devices(spec: ShardingSpecProto, devices: int) -> Iterator[Wrong]:
    """Devices that are none, or that are named twice, and groups that are not used or not there."""
    groups: dict[int, Sequence[int]] = {}
    twice = sorted(key for key, count in Counter(e.key for e in spec.index_to_device_group_map).items() if count > 1)
    for key in twice[:MOST_SHOWN]:
        yield Wrong("TP168", f"group {key} is said twice", "Say it once")
    for entry in spec.index_to_device_group_map:
        groups[entry.key] = entry.value
    named = [member for device in spec.device for member in groups.get(device, (device,))]
    range_text = f"0 to {devices - 1}" if devices > 1 else "0"
    keys = set(spec.device)
    outside = [device for device in dict.fromkeys(named) if not 0 <= device < devices]
    if outside:
        key = next((device for device in outside if device < 0 and device in keys), None)
        fact = f"{_listed(outside)} {'is no device' if len(outside) == 1 else 'are no devices'}"
        group = f", or say in index_to_device_group_map which devices {key} stands for" if key is not None else ""
        yield Wrong("TP168", fact, f"Use {range_text}{group}")
    again = [device for device, count in Counter(named).items() if count > 1]
    if again:
        fact = f"{_listed(again)} {'is' if len(again) == 1 else 'are'} named twice, so what each holds is not said"
        yield Wrong("TP168", fact, "Name each device once")
    empty = [key for key, members in groups.items() if not members]
    if empty:
        yield Wrong("TP168", f"group {_listed(empty)} has no devices", "Say which devices have that shard")
    unused = [key for key in groups if key not in keys]
    if unused:
        remedy = "Put its key into the list of devices, or leave it out"
        yield Wrong("TP168", f"group {_listed(unused)} has no shard", remedy)


def _listed(numbers: Iterable[int]) -> str:
    found = list(numbers)
    rest = f" and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    return ", ".join(map(str, found[:MOST_SHOWN])) + rest


def _axes(
    spec: ShardingSpecProto, sizes: Sequence[int | None] | None
) -> tuple[list[tuple[int, list[Factor]]], list[Wrong]]:
    """The axes that are said to be sharded, in the order they are said, without who has which shard."""
    axes: list[tuple[int, list[Factor]]] = []
    wrong: list[Wrong] = []
    seen: set[int] = set()
    rank = None if sizes is None else len(sizes)
    for dim in spec.sharded_dim:
        if not dim.HasField("axis"):
            wrong.append(Wrong("TP169", "a sharded dimension does not say which axis it is", "Say the axis"))
            continue
        if rank is not None and not -rank <= dim.axis < rank:
            remedy = f"Use {-rank} to {rank - 1}" if rank else "A scalar has no axes: leave it out"
            wrong.append(Wrong("TP169", f"there is no axis {dim.axis}: the tensor has {rank}", remedy))
            continue
        axis = dim.axis + rank if rank is not None and dim.axis < 0 else dim.axis
        if axis in seen:
            wrong.append(Wrong("TP169", f"axis {axis} is sharded twice", "Say all its shards in one sharded dimension"))
            continue
        seen.add(axis)
        size = None if sizes is None or axis < 0 else sizes[axis]
        if len(dim.simple_sharding) > MOST_FACTORS:
            fact = f"axis {axis} is said to be a product of {len(dim.simple_sharding)} sizes"
            wrong.append(Wrong("TP170", fact, f"Say {MOST_FACTORS} or fewer"))
            continue
        found = [_simple(simple, size if len(dim.simple_sharding) == 1 else None) for simple in dim.simple_sharding]
        faults = [factor for factor in found if isinstance(factor, Wrong)]
        factors = [factor for factor in found if isinstance(factor, Factor)]
        wrong += [Wrong(fault.code, f"axis {axis} {fault.fact}", fault.remedy) for fault in faults]
        if not faults:
            sized, fault = _sized(factors, axis, size)
            wrong += [fault] if fault else []
            axes.append((axis, sized))
    return axes, wrong


def _simple(simple: ShardingSpecProto, size: int | None) -> Factor | Wrong:  # a SimpleShardedDimProto
    given = simple.dim_value if simple.HasField("dim_value") else None
    known = size if given is None else given
    if not simple.HasField("num_shards") or simple.num_shards < 1:
        said = f"is in {simple.num_shards} shards" if simple.HasField("num_shards") else "does not say its num_shards"
        return Wrong("TP170", said, "Say 1 or more")
    if known is not None and known < 1:
        return Wrong("TP170", f"has a dim_value of {known}", "Say 1 or more, or leave it out")
    if known is not None and simple.num_shards > known:
        return Wrong("TP170", f"is in {simple.num_shards} shards, and has {known} elements", f"Use {known} or fewer")
    return Factor(known, simple.num_shards)


def _sized(factors: list[Factor], axis: int, size: int | None) -> tuple[list[Factor], Wrong | None]:
    """Hold the sizes of an axis' factors against its own; one that is not said follows from the others."""
    missing = [k for k, factor in enumerate(factors) if factor.size is None]
    known = math.prod(factor.size for factor in factors if factor.size is not None)
    if size is None or not factors:
        return factors, None
    said = " × ".join("?" if factor.size is None else str(factor.size) for factor in factors)
    fault = Wrong("TP170", f"axis {axis} of {size} elements is said to have {said}", "Correct the dim_value")
    if not missing:
        return factors, None if known == size else fault
    if size % known or (len(missing) == 1 and factors[missing[0]].shards > size // known):
        return factors, fault
    if len(missing) == 1:
        factors[missing[0]] = Factor(size // known, factors[missing[0]].shards)
    return factors, None
