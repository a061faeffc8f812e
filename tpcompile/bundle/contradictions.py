"""What the parts of a manifest must have to do with each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpcompile.bundle.manifest import Manifest, Placement, RankEntry


def contradictions(manifest: Manifest) -> Iterable[str]:
    """Each contradiction in words."""
    world = manifest.world_size
    if [entry.rank for entry in manifest.ranks] != list(range(world)):
        yield f"lists ranks {[entry.rank for entry in manifest.ranks]} for a world of {world}"
    for rank in manifest.ranks:
        yield from _contradictions_of_engines(manifest, rank)
    for name, entry in [*manifest.inputs.items(), *manifest.outputs.items()]:
        place = entry.placement
        if place is None:
            continue
        if place.axis >= len(entry.shape):
            yield f"{name} is cut along axis {place.axis} of {len(entry.shape)}"
        if len(place.ranges) != manifest.mesh.tp:
            yield f"{name} has ranges for {len(place.ranges)} ranks, not {manifest.mesh.tp}"
        if not _covers(place):
            yield f"the ranges of {name} do not cover its axis {place.axis}"
    for pair in manifest.state:
        if pair.input not in manifest.inputs or pair.output not in manifest.outputs:
            yield f"state {pair.input} -> {pair.output} names no input and output of the model"
        elif manifest.inputs[pair.input].placement != manifest.outputs[pair.output].placement:
            yield f"state {pair.input} -> {pair.output} is cut differently at its two ends"
    for role, name in manifest.roles.items():
        if name not in manifest.inputs and name not in manifest.outputs:
            yield f"role {role} names {name}, which is no input or output"


def _contradictions_of_engines(manifest: Manifest, rank: RankEntry) -> Iterable[str]:
    libraries = [engine.library for engine in rank.engines]
    if len(set(libraries)) != len(libraries):
        yield f"rank {rank.rank} has several engines of one library"
    for engine in rank.engines:
        for name, sizes in ((name, sizes) for profile in engine.profiles for name, sizes in profile.items()):
            if name not in manifest.inputs:
                yield f"{engine.file} has a profile of {name}, which is no input"
            elif not len(sizes.min) == len(sizes.opt) == len(sizes.max):
                yield f"the profile of {name} in {engine.file} differs in its numbers of axes"
            elif not all(low <= opt <= high for low, opt, high in zip(sizes.min, sizes.opt, sizes.max, strict=True)):
                yield f"the profile of {name} in {engine.file} is not in order"


def _covers(place: Placement) -> bool:
    edge = 0
    for low, high in sorted(part for parts in place.ranges for part in parts):
        if low > edge:
            return False
        edge = max(edge, high)
    return True
