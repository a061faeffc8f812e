"""Small engines with one collective of each kind that a bundle has, and numbers whose results are known.

They are built at load, by the library and on the GPU that will run the bundle: what is tried is what is used, whatever
built the bundle's engines elsewhere. Sums of small whole numbers are exact in float32, so nothing is allowed for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tpcompile.bundle.manifest import Manifest
from tpcompile.errors import Fault, Refused, refuse
from tpcompile.run.bound_engine import BoundEngine, listen
from tpcompile.run.cuda import Gpu
from tpcompile.run.mpi import World
from tpcompile.run.tensors import Array
from tpcompile.targets.collectives import DOMAIN, make_collective
from tpcompile.targets.tensorrt import configure, network_flags

INPUT, ZERO, WIDTH = "x", "zero", 3
WHERE = "the self-test"


@dataclass(frozen=True)
class Kind:
    """A collective to try: `groups` are those of all ranks, () for all in one; `name` is the output's."""

    op: str
    groups: tuple[tuple[int, ...], ...]
    name: str

    def of(self, rank: int, size: int) -> tuple[int, ...]:
        """The ranks that `rank` meets, in order."""
        return next((group for group in self.groups if rank in group), tuple(range(size)))


def kinds(manifest: Manifest) -> list[Kind]:
    """What a bundle's engines do together, each once; without collectives over one rank, which engines leave out."""
    found: dict[tuple[str, tuple[tuple[int, ...], ...]], Kind] = {}
    for entry in manifest.collectives:
        if not entry.groups or max(map(len, entry.groups)) > 1:
            found.setdefault((entry.op, entry.groups), Kind(entry.op, entry.groups, f"{entry.op}_{len(found)}"))
    return list(found.values())


def given(rank: int, size: int) -> Array:
    """What a rank puts in: rows for every rank, numbers that no other rank has."""
    rows = np.arange(size * WIDTH, dtype=np.float32).reshape(size, WIDTH)
    return rows + 1000 * (rank + 1)


def expected(kind: Kind, rank: int, size: int) -> Array:
    """What a rank must get out."""
    group = kind.of(rank, size)
    all_given = [given(member, size) for member in group]
    place = group.index(rank)
    total: Array = np.sum(all_given, axis=0)
    if kind.op == "all_gather":
        return np.concatenate(all_given)
    if kind.op == "broadcast":
        return all_given[0]
    if kind.op == "reduce_scatter":
        return np.split(total, len(group))[place]
    if kind.op == "all_to_all":
        return np.concatenate([np.split(block, len(group))[place] for block in all_given])
    return total


def model(wanted: Sequence[Kind], rank: int, size: int) -> onnx.ModelProto:
    """A graph that does `wanted` to its input, as rank models are written: one after the other, on every rank.

    Each waits for the last, since its input has nought added, and that nought is made of the last one's output.
    """
    nodes, outputs, source = [], [], INPUT
    for kind in wanted:
        group = kind.of(rank, size)
        reduces = kind.op in ("all_reduce", "reduce_scatter")
        nodes.append(make_collective(
            kind.op, source, kind.name, nb_rank=len(group), groups=group if kind.groups else (), name=kind.name,
            reduce_op="sum" if reduces else "none", root=group[0] if kind.op == "broadcast" else -1,
        ))  # fmt: skip
        shape = expected(kind, rank, size).shape
        outputs.append(onnx.helper.make_tensor_value_info(kind.name, onnx.TensorProto.FLOAT, shape))
        total, size_of, nought, following = (f"{kind.name}/{part}" for part in ("total", "size", "nought", "x"))
        nodes += [
            onnx.helper.make_node("ReduceSum", [kind.name], [total], keepdims=0),
            onnx.helper.make_node("Abs", [total], [size_of]),
            onnx.helper.make_node("Min", [size_of, ZERO], [nought]),
            onnx.helper.make_node("Add", [INPUT, nought], [following]),
        ]
        source = following
    inputs = [onnx.helper.make_tensor_value_info(INPUT, onnx.TensorProto.FLOAT, [size, WIDTH])]
    zero = onnx.numpy_helper.from_array(np.array(0, np.float32), ZERO)
    graph = onnx.helper.make_graph(nodes[:-4], "self_test", inputs, outputs, [zero])
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(DOMAIN, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


class SelfTest:
    """Engines, built and read: one for each kind, and one for all. They take the communicator, then `run` and `faults`.

    The library was seen to refuse groups of several sizes where it fuses collectives, so an engine for all is made
    where that goes; where it goes, it is what a bundle's engine is like.

    Raises:
        Refused: TP655 the library cannot build one.
    """

    def __init__(self, library: Any, gpu: Gpu, manifest: Manifest, world: World) -> None:
        self.library, self.gpu, self.world, self.kinds = library, gpu, world, kinds(manifest)
        self.engines = [self._engine([kind]) for kind in self.kinds]
        if len(self.kinds) > 1:
            with contextlib.suppress(Refused):
                self.engines.append(self._engine(self.kinds))

    def _engine(self, wanted: Sequence[Kind]) -> BoundEngine:
        plan = build(self.library, model(wanted, self.world.rank, self.world.size))
        return BoundEngine(self.library, plan, self.gpu, WHERE)

    def run(self) -> list[dict[str, Array]]:
        """What each engine makes of this rank's numbers; all ranks together."""
        found = []
        for bound in self.engines:
            made = bound.run({INPUT: self.gpu.from_numpy(given(self.world.rank, self.world.size))})
            self.gpu.mark(f"{', '.join(made)} of {WHERE}")
            found.append({name: self.gpu.to_numpy(value) for name, value in made.items()})
        return found

    def faults(self, made: Sequence[dict[str, Array]]) -> Iterator[Fault]:
        """TP655 for each output that is not as expected, or that not all ranks have."""
        rank, size = self.world.rank, self.world.size
        for kind, outputs in ((kind, outputs) for outputs in made for kind in self.kinds if kind.name in outputs):
            wanted, found = expected(kind, rank, size), outputs[kind.name]
            if not np.array_equal(wanted, found):
                fact = f"{kind.op} of ranks {list(kind.of(rank, size))} gave {found.reshape(-1)[:WIDTH].tolist()}"
                remedy = "Collectives do not work in engines here: use --backend cuda; `tpcompile doctor` tries NCCL"
                yield Fault("TP655", WHERE, f"{fact} where {wanted.reshape(-1)[:WIDTH].tolist()} is right", remedy)


def build(library: Any, graph: onnx.ModelProto) -> Any:
    """The plan of a small engine for the GPU of this rank."""
    logger = listen(library)
    builder = library.Builder(logger)
    network = builder.create_network(network_flags(library))
    parser = library.OnnxParser(network, logger)
    config = builder.create_builder_config()
    configure(library, config)
    if hasattr(library, "ComputeCapability"):  # where engines can be for other GPUs
        config.num_compute_capabilities = 1
        config.set_compute_capability(library.ComputeCapability.CURRENT, 0)
    plan = builder.build_serialized_network(network, config) if parser.parse(graph.SerializeToString()) else None
    if plan is None:
        said = "; ".join(logger.errors) or "it does not say why"
        raise refuse("TP655", WHERE, f"{library.__name__} {library.__version__} cannot build its engine ({said})",
                     "Use --backend cuda, or another version of the library")  # fmt: skip
    return plan
