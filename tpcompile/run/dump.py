"""`tprun --dump GLOB`: values of one pass in a folder, an .npz per rank, and how each lies, to join parts.

    dump.json   {"ranks": 2, "values": {name: {"node": "MatMul /up", "placement": …}, …}} in order of computation
    rank0.npz   the values of rank 0 by name, and so on

`placement` is null where nothing is said (the value is the same on all ranks, or each rank's own), or as in the
metadata of rank files: {"axis": 1, "ranges": […]}, {"partial": [[0, 1]]}, or both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import onnx

from tpcompile.bundle.manifest import IOEntry, Manifest
from tpcompile.errors import refuse
from tpcompile.graph.scopes import subgraphs
from tpcompile.run import arrays
from tpcompile.run.executor import Memory, Value
from tpcompile.run.mpi import World
from tpcompile.run.tensors import Array
from tpcompile.targets.collectives import holds_collective

FILE_NAME = "dump.json"


class Dump:
    """Copies of the values whose names match `pattern`; `places` tells of each which node makes it and how it lies."""

    def __init__(self, pattern: str, manifest: Manifest) -> None:
        self.pattern, self.manifest = pattern, manifest
        self.places: dict[str, dict[str, Any]] = {}
        self._copies: dict[str, Array] = {}

    def choose(self, graph: onnx.GraphProto) -> None:
        """Find the values. Refuses (TP615) a pattern that none matches."""
        said = [entry.value for entry in graph.metadata_props if entry.key == "tpcompile.placements"]
        placements: dict[str, Any] = json.loads(said[0]) if said else {}
        for entries in (self.manifest.inputs, self.manifest.outputs):
            placements |= {name: _placed(entry) for name, entry in entries.items() if entry.placement is not None}
        stored = {tensor.name for tensor in graph.initializer}
        named = [(value.name, "input") for value in graph.input if value.name not in stored]
        for name, node in [*named, *_values(graph)]:
            if fnmatchcase(name, self.pattern):
                self.places[name] = {"node": node, "placement": placements.get(name)}
        if not self.places:
            raise refuse("TP615", f"--dump {self.pattern}", "no value of the rank models has such a name",
                         "Quote the pattern; '*' dumps every value")  # fmt: skip

    def note(self, memory: Memory, values: Mapping[str, Value], made: Iterable[str]) -> None:
        """Copy those of the values just made that are asked for: their memory may be worked in later."""
        for name in made:
            if name in self.places:
                self._copies[name] = memory.to_numpy(values[name])

    def write(self, folder: Path, world: World) -> None:
        """Write this rank's copies, and from rank 0 what they are; a folder that is there is written into.

        Raises:
            Refused: TP609 the place cannot be written to.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refuse("TP609", str(folder), f"cannot be written ({error})", "Choose another --dump-to") from None
        arrays.write(folder / f"rank{world.rank}.npz", self._copies)
        if world.rank == 0:
            values = {name: place for name, place in self.places.items() if name in self._copies}
            (folder / FILE_NAME).write_text(json.dumps({"ranks": world.size, "values": values}, indent=1) + "\n")


def _placed(entry: IOEntry) -> dict[str, Any] | None:
    place = entry.placement
    return None if place is None else {"axis": place.axis, "ranges": place.ranges}


def _values(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Every value that a rank can show, with its node: the graph's, and those of branches if one holds collectives."""
    for node in graph.node:
        for inner in subgraphs(node) if holds_collective(node) else ():
            yield from _values(inner)
        yield from ((name, f"{node.op_type} {node.name}".strip()) for name in node.output if name)
