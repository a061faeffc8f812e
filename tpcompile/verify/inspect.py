"""`tpcompile inspect BUNDLE`: what a bundle holds, read from its files alone. Needs no source and runs nothing."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import onnx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tpcompile.bundle.manifest import DIALECTS, IOEntry, Manifest, Profile
from tpcompile.errors import refuse
from tpcompile.plan.words import bytes_text
from tpcompile.verify.files import REWRITE, Bundle, open_bundle, tensor_bytes

SHOWN = 24
"""Rows of a table for people, unless more were asked for."""
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class StoredWeight:
    """What the ranks hold of one tensor.

    `source` is the source's name of it; `shape` the source's shape; `local_shapes[rank]` what a rank stores, None where
    it stores nothing; `ranges[axis][rank]` the half-open index ranges of the source's axis that a rank holds, None for
    an axis that all hold whole; `zeroed` the ranks that store zeros in its stead; `rank_bytes` what each rank reads.
    """

    name: str
    source: str
    dtype: str
    shape: tuple[int, ...]
    local_shapes: tuple[tuple[int, ...] | None, ...]
    ranges: tuple[tuple[Ranges, ...] | None, ...]
    zeroed: tuple[int, ...]
    rank_bytes: tuple[int, ...]

    @property
    def copies(self) -> int:
        """How many ranks hold the part that most ranks hold: 1 where all parts differ, all ranks where it is whole."""
        held = list(zip(*(axis for axis in self.ranges if axis is not None), strict=True))
        holders = [rank for rank in range(len(self.rank_bytes)) if rank not in self.zeroed]
        return max(held.count(part) for part in held) if held else len(holders)

    @property
    def is_constant(self) -> bool:
        """A number or a short list of them that nodes read as sizes, axes or bounds."""
        return math.prod(self.shape) == 1 or (len(self.shape) < 2 and self.dtype in ("int64", "int32", "bool"))

    def lies(self) -> str:
        """How it lies on the ranks, in a line: `axis 0: 0:250 | 250:500`."""
        texts = [_axis_text(at, held) for at, held in enumerate(self.ranges) if held is not None]
        if self.zeroed:
            holders = [str(rank) for rank in range(len(self.rank_bytes)) if rank not in self.zeroed]
            texts.append(f"on rank {', '.join(holders)}, zeros elsewhere")
        lacking = [str(rank) for rank, shape in enumerate(self.local_shapes) if shape is None]
        if lacking:
            texts.append(f"not on rank {', '.join(lacking)}")
        return "; ".join(texts) or "whole"


def _axis_text(axis: int, held: Sequence[Ranges]) -> str:
    """The parts of one axis in order of rank; ranks that hold the same one are named behind it."""
    owners: dict[Ranges, list[int]] = {}
    for rank, part in enumerate(held):
        owners.setdefault(part, []).append(rank)
    texts = []
    for part, ranks in owners.items():
        spans = [f"{low}:{high}" for low, high in part[:3]] + (["…"] if len(part) > 3 else [])
        copies = f" (ranks {', '.join(map(str, ranks))})" if len(ranks) > 1 else ""
        texts.append(",".join(spans) + copies)
    return f"axis {axis}: {' | '.join(texts)}"


def stored_weights(bundle: Bundle) -> list[StoredWeight]:
    """Every tensor that the ranks store, in the order of rank 0's file. Refuses (TP501) notes that make no sense."""
    names = dict.fromkeys(name for model in bundle.ranks for name in model.tensors)
    return [_stored(bundle, name) for name in names]


def _stored(bundle: Bundle, name: str) -> StoredWeight:
    tensors = [model.tensors.get(name) for model in bundle.ranks]
    notes = [{entry.key: entry.value for entry in tensor.metadata_props} if tensor else {} for tensor in tensors]
    first = next(tensor for tensor in tensors if tensor)
    try:
        held = [
            _ranges_of(note.get("tpcompile.ranges"), tensor.dims) if tensor else [()] * len(first.dims)
            for note, tensor in zip(notes, tensors, strict=True)
        ]
        by_axis = list(zip(*held, strict=True))
    except (ValueError, TypeError) as error:
        fact = f"the part that a rank holds is described in what cannot be read ({error})"
        raise refuse("TP501", f"{bundle.folder} {name}", fact, REWRITE) from error
    shape = tuple(max((high for part in parts for _, high in part), default=0) for parts in by_axis)
    whole = [
        all(part in ((), ((0, size),)) or not size for part in parts)
        for size, parts in zip(shape, by_axis, strict=True)
    ]
    return StoredWeight(
        name=name,
        source=next((note["tpcompile.source"] for note in notes if "tpcompile.source" in note), name),
        dtype=onnx.helper.tensor_dtype_to_np_dtype(first.data_type).name,
        shape=shape,
        local_shapes=tuple(tuple(tensor.dims) if tensor else None for tensor in tensors),
        ranges=tuple(None if all_hold else parts for all_hold, parts in zip(whole, by_axis, strict=True)),
        zeroed=tuple(rank for rank, note in enumerate(notes) if note.get("tpcompile.zeroed") == "1"),
        rank_bytes=tuple(tensor_bytes(tensor) if tensor else 0 for tensor in tensors),
    )


def _ranges_of(said: str | None, local_shape: Sequence[int]) -> list[Ranges]:
    """What a rank holds of each axis; all of it where nothing is said."""
    spoken = json.loads(said) if said is not None else [None] * len(local_shape)
    if len(spoken) != len(local_shape):
        raise ValueError(f"{len(spoken)} axes for a tensor of {len(local_shape)}")
    return [
        ((0, size),) if parts is None else tuple((int(low), int(high)) for low, high in parts)
        for parts, size in zip(spoken, local_shape, strict=True)
    ]


def contents_json(bundle: Bundle, weights: Sequence[StoredWeight]) -> dict[str, Any]:
    """A bundle for machines: bundle.json with the weights and what each rank reads."""
    found = bundle.manifest.to_json()
    for entry, rank in zip(bundle.manifest.ranks, found["ranks"], strict=True):
        rank["bytes"] = sum(data.bytes for data in entry.data)
    found["weights"] = [asdict(weight) | {"copies": weight.copies} for weight in weights]
    return {"folder": str(bundle.folder)} | found


def print_contents(bundle: Bundle, weights: Sequence[StoredWeight], console: Console, shown: int) -> None:
    """A bundle for people: ranks, inputs, outputs, weights, collectives; at most `shown` rows of the last two."""
    manifest = bundle.manifest
    dialect = "" if manifest.dialect == DIALECTS[0] else f" in the dialect {manifest.dialect}"
    console.print(
        f"[bold]{escape(str(bundle.folder))}[/]  {escape(manifest.source.file)} "
        f"({bytes_text(manifest.source.bytes)}) on {manifest.world_size} ranks, "
        f"tp {manifest.mesh.tp} × pp {manifest.mesh.pp}, written by tpcompile {escape(manifest.tpcompile)}{dialect}\n"
    )
    ranks = _table("rank", "weights", "model", "files")
    for entry in manifest.ranks:
        files = ", ".join(f"{file.file} ({bytes_text(file.bytes)})" for file in entry.data)
        read = sum(weight.rank_bytes[entry.rank] for weight in weights)
        ranks.add_row(str(entry.rank), bytes_text(read), escape(entry.model), escape(files))
    console.print(ranks, "")
    for line in [*engine_lines(manifest), ""] if any(entry.engines for entry in manifest.ranks) else []:
        console.print(escape(line))
    for side, entries in (("input", manifest.inputs), ("output", manifest.outputs)):
        table = _table(side, "type", "shape", "lies", "is")
        for name, io in entries.items():
            shape = ", ".join(str(size) or "?" for size in io.shape)
            table.add_row(escape(name), io.dtype, escape(f"[{shape}]"), _io_lies(io), escape(_purpose(manifest, name)))
        console.print(table, "")
    named = [weight for weight in weights if not weight.is_constant]
    table = _table("weight", "type", "source's shape", "a rank's", "lies")
    for weight in named[:shown]:
        local = dict.fromkeys("–" if shape is None else "×".join(map(str, shape)) for shape in weight.local_shapes)
        of = f" (of {weight.source})" if weight.source != weight.name else ""
        table.add_row(
            escape(weight.name + of), weight.dtype, "×".join(map(str, weight.shape)), ", ".join(local), weight.lies()
        )
    console.print(table)
    _print_rest(console, len(named), shown, "weights", "--weights GLOB or --all")
    constants = len(weights) - len(named)
    console.print(f"and {constants} constants: sizes, axes, bounds\n" if constants else "")
    table = _table("#", "collective", "of", "groups", "bytes", "because")
    for call in manifest.collectives[:shown]:
        groups = " ".join(str(list(group)) for group in call.groups) or "all"
        table.add_row(
            str(call.index), call.op, escape(call.value), escape(groups), escape(call.bytes), escape(call.because)
        )
    console.print(table if manifest.collectives else "no collectives")
    _print_rest(console, len(manifest.collectives), shown, "collectives", "--all")


def engine_lines(manifest: Manifest) -> list[str]:
    """What engines were made with and for, in lines of fewer than 80 columns; ranks' files are named alike."""
    lines: dict[str, None] = {}
    for engine in (engine for entry in manifest.ranks for engine in entry.engines):
        made_for = f"  for compute capability {engine.compute_capability}, {engine.precision}"
        lines[f"engines: {engine.library} {engine.version}\n{made_for}, {engine.collectives} collectives"] = None
        if engine is next(held for held in manifest.ranks[0].engines if held.library == engine.library):
            others = f" and {manifest.world_size - 1} more" if manifest.world_size > 1 else ""
            lines[f"  in {engine.file} ({bytes_text(engine.bytes)}){others}"] = None
            lines |= dict.fromkeys(f"  for {profile_text(profile)}" for profile in engine.profiles)
    return list(lines)


def profile_text(profile: Profile) -> str:
    """The first input's shapes: the others follow it, and all stand in --json."""
    name, sizes = next(iter(profile.items()))
    more = f" and {len(profile) - 1} more" if len(profile) > 1 else ""
    return f"{name}={':'.join('x'.join(map(str, shape)) for shape in (sizes.min, sizes.opt, sizes.max))}{more}"


def _print_rest(console: Console, count: int, shown: int, what: str, option: str) -> None:
    if count > shown:
        console.print(f"… and {count - shown} more {what} ({option})")


def _io_lies(entry: IOEntry) -> str:
    return _axis_text(entry.placement.axis, entry.placement.ranges) if entry.placement else "whole"


def _purpose(manifest: Manifest, name: str) -> str:
    """The role of an input or output, and its place in a cache."""
    return ", ".join(_purposes(manifest, name))


def _purposes(manifest: Manifest, name: str) -> Iterator[str]:
    yield from (role for role, holder in manifest.roles.items() if holder == name)
    for pair in manifest.state:
        if name == pair.input:
            yield f"cache, next from {pair.output}"
        elif name == pair.output:
            grows = f"longer along axis {pair.axis}" if pair.kind == "append" else "written in place"
            yield f"cache, {grows}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tpcompile inspect` takes."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the folder that tpcompile wrote")
    parser.add_argument("--weights", metavar="GLOB", help="only weights of these names, and all of them")
    parser.add_argument("--all", action="store_true", help="every weight and collective, however many")
    parser.add_argument("--json", action="store_true", help="print JSON for machines")


def inspect_command(arguments: argparse.Namespace) -> int:
    """Run `tpcompile inspect`.

    Raises:
        Refused: the bundle cannot be read (TP45x, TP501); no weight has such a name (TP505).
    """
    bundle = open_bundle(arguments.bundle)
    weights = stored_weights(bundle)
    if arguments.weights is not None:
        weights = [weight for weight in weights if fnmatchcase(weight.name, arguments.weights)]
        if not weights:
            raise refuse("TP505", f"--weights {arguments.weights}", "no weight of the bundle has such a name",
                         "`tpcompile inspect BUNDLE --all` lists them")  # fmt: skip
    if arguments.json:
        print(json.dumps(contents_json(bundle, weights), indent=1))
    else:
        every = max(len(weights), len(bundle.manifest.collectives))
        shown = every if arguments.all or arguments.weights is not None else SHOWN
        print_contents(bundle, weights, Console(highlight=False), shown)
    return 0
