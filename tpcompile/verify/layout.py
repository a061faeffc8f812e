"""The layout checker: shapes and placements derived again from the rank files alone.

It shares no code with the compiler's rules. Three questions: do the files keep the form that bundle.json and the source
give (`form_faults`); do all ranks issue the same collectives in the same order (`collective_faults`); and, followed
through every operator from the stored parts and the placed inputs, is every value whole, cut or partial as its readers
need it (`follow`)?
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import onnx

from tpcompile.bundle.manifest import CollectiveEntry, Placement
from tpcompile.errors import Fault, Refused
from tpcompile.targets.collectives import is_collective, read_collective, register_schema
from tpcompile.verify import lattice
from tpcompile.verify.files import Array, Bundle, ModelFile, attribute, reads
from tpcompile.verify.inputs import input_values, spelled
from tpcompile.verify.lattice import Free, Lies, State
from tpcompile.verify.rules import RULES
from tpcompile.verify.rules.site import Site, Undecided
from tpcompile.verify.simulate import REMEDY, Trace, group_of
from tpcompile.verify.tiles import Part, Tiling

SMALL = 4096


def form_faults(bundle: Bundle, source: ModelFile) -> Iterator[Fault]:
    """Shapes that contradict each other within a rank file, and inputs and outputs that are not the source's."""
    register_schema()
    known = _strict_fault(source) is None  # what onnx cannot infer for the source it cannot hold against the ranks
    for rank, model in enumerate(bundle.ranks):
        fault = _strict_fault(model) if known else None
        if fault:
            yield Fault("TP520", model.name, f"strict shape inference fails: {fault}", REMEDY)
        for side in ("inputs", "outputs"):
            yield from _signature_faults(bundle, source, rank, side)


def _strict_fault(model: ModelFile) -> str | None:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for tensor in proto.graph.initializer:  # onnx reads shape operands only where they are in the file itself
        if tensor.data_location == onnx.TensorProto.EXTERNAL and math.prod(tensor.dims) <= SMALL:
            with suppress(Refused):  # bytes that are not there are the weights check's to name
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(model.array(tensor.name)), tensor.name))
    try:
        onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    except Exception as error:  # a C++ error of onnx's own or ValueError above 2 GB
        return " ".join(str(error).split())[:300]
    return None


def _signature_faults(bundle: Bundle, source: ModelFile, rank: int, side: str) -> Iterator[Fault]:
    mine, theirs = (
        (input_values(m) if side == "inputs" else list(m.graph.output)) for m in (bundle.ranks[rank], source)
    )
    listed = bundle.manifest.inputs if side == "inputs" else bundle.manifest.outputs
    names = [value.name for value in theirs]
    for where, found in ((f"rank {rank}", [value.name for value in mine]), ("bundle.json", list(listed))):
        if found != names:
            yield Fault("TP521", where, f"has {side} {found}, the source has {names}", REMEDY)
            return
    for value, wanted in zip(mine, theirs, strict=True):
        entry, shape = listed[value.name], spelled(wanted)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(wanted.type.tensor_type.elem_type).name
        if (entry.dtype, list(entry.shape)) != (dtype, shape):
            yield Fault(
                "TP521",
                f"bundle.json: {value.name}",
                f"is {entry.dtype} {list(entry.shape)}, in the source {dtype} {shape}",
                REMEDY,
            )
        if entry.placement:
            shape[entry.placement.axis] = entry.placement.local_size(rank)
        if spelled(value) != shape or value.type.tensor_type.elem_type != wanted.type.tensor_type.elem_type:
            yield Fault(
                "TP521",
                f"rank {rank}: {value.name}",
                f"is declared as {spelled(value)}, by source and placement it is {shape}",
                REMEDY,
            )


def collective_faults(bundle: Bundle) -> Iterator[Fault]:
    """Collectives that contradict themselves, each other, the other ranks' or bundle.json, and those nobody reads."""
    orders: list[list[tuple[object, ...]]] = []
    for rank, model in enumerate(bundle.ranks):
        read = {name for node in model.graph.node for name in reads(node)} | {
            value.name for value in model.graph.output
        }
        mine: list[tuple[object, ...]] = []
        for node in (node for node in model.graph.node if is_collective(node)):
            try:
                found = read_collective(node)
            except Refused as refused:
                yield from (Fault("TP522", f"rank {rank}: {f.where}", f.fact, REMEDY) for f in refused.faults)
                continue
            mine.append((found.op, found.reduce_op, found.root, found.nb_rank, found.output))
            if found.output not in read:
                yield Fault(
                    "TP527",
                    f"rank {rank}: {found.name}",
                    f"the result {found.output!r} of {found.op} is read by nobody",
                    REMEDY,
                )
        orders.append(mine)
    for rank, mine in enumerate(orders):
        if mine != orders[0]:
            at = next(
                (k for k, (a, b) in enumerate(zip(mine, orders[0], strict=False)) if a != b),
                min(len(mine), len(orders[0])),
            )
            here, there = (_named(order, at) for order in (mine, orders[0]))
            yield Fault(
                "TP522",
                f"rank {rank}",
                f"its collective {at} is {here}, that of rank 0 is {there}: they would wait for each other",
                REMEDY,
            )
            return
    yield from _group_faults(bundle)
    listed = [entry.op for entry in bundle.manifest.collectives]
    if listed != [op for op, *_ in orders[0]]:
        yield Fault(
            "TP522",
            "bundle.json",
            f"lists {len(listed)} collectives, the rank files have {len(orders[0])} or others in that order",
            REMEDY,
        )


def _named(order: list[tuple[object, ...]], at: int) -> str:
    return f"{order[at][0]} to {order[at][-1]!r}" if at < len(order) else "missing"


def _group_faults(bundle: Bundle) -> Iterator[Fault]:
    """Groups must hold their own rank, agree between their members, and be those of bundle.json."""
    rounds = zip(*([node for node in model.graph.node if is_collective(node)] for model in bundle.ranks), strict=True)
    for at, nodes in enumerate(rounds):
        groups = [group_of(node, bundle.tp) for node in nodes]
        where = nodes[0].name or nodes[0].output[0]
        for rank, group in enumerate(groups):
            if (
                rank not in group
                or not set(group) <= set(range(bundle.tp))
                or any(groups[other] != group for other in group)
            ):
                yield Fault("TP522", f"rank {rank}: {where}", f"its group is {group}, the ranks have {groups}", REMEDY)
                return
            if attribute(nodes[rank], "nb_rank") != len(group):
                yield Fault(
                    "TP522",
                    f"rank {rank}: {where}",
                    f"nb_rank is {attribute(nodes[rank], 'nb_rank')} for group {group}",
                    REMEDY,
                )
                return
        entries = bundle.manifest.collectives
        if at < len(entries) and _listed_groups(entries[at], bundle.tp) != {tuple(group) for group in groups}:
            yield Fault(
                "TP522",
                where,
                f"runs in groups {sorted({tuple(g) for g in groups})}, bundle.json lists {list(entries[at].groups)}",
                REMEDY,
            )


def _listed_groups(entry: CollectiveEntry, tp: int) -> set[tuple[int, ...]]:
    return {tuple(group) for group in entry.groups} or {tuple(range(tp))}


@dataclass
class Followed:
    """What became of every value: its state by name, faults, and the operations that could not be decided."""

    states: dict[str, State] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    operations: int = 0


@dataclass
class _Follower:
    bundle: Bundle
    tiling: Tiling
    trace: Trace
    shapes: Mapping[str, tuple[int, ...]]
    found: Followed = field(default_factory=Followed)

    def value(self, name: str) -> list[Array]:
        return [
            values[name] if name in values else model.array(name)
            for values, model in zip(self.trace.values, self.bundle.ranks, strict=True)
        ]

    def stored(self, name: str) -> bool:
        return all(name in model.tensors for model in self.bundle.ranks)

    def asked(self, name: str, size: int) -> list[Array]:
        """Whole integer values of `size` entries that `name` is made from, the nearest first."""
        found: list[Array] = []
        queue, seen = [name], set[str]()
        made = {output: node for node in self.bundle.ranks[0].graph.node for output in node.output}
        while queue and len(seen) < 40:
            now = queue.pop(0)
            state = self.found.states.get(now)
            if isinstance(state, Lies) and state.settled and not self.stored(now):
                array = self.value(now)[0]
                if array.dtype.kind == "i" and array.size == size:
                    found.append(array)
            if now not in seen and now in made:
                queue.extend(name for name in made[now].input if name)
            seen.add(now)
        return found

    def whole_shape(self, name: str) -> tuple[int, ...]:
        """The shape that the source's value of that name has in the same run; () where it has none of that name."""
        return self.shapes.get(name, self.shapes.get(name.removesuffix(".local"), ()))

    def start(self) -> None:
        """States of inputs, by bundle.json, and of stored tensors, by the tiling; other stored ones by comparison."""
        for value in input_values(self.bundle.ranks[0]):
            arrays = self.value(value.name)
            self.found.states[value.name] = _placed(self.bundle.placement("inputs", value.name), arrays)
        for name in self.bundle.ranks[0].tensors:
            if self.stored(name):
                parts = self.tiling.parts.get(name)
                self.found.states[name] = _tiled(parts) if parts else self.compared([name])[0]

    def compared(self, names: list[str]) -> list[State]:
        """Whole where all ranks have the same bits, else VARIES."""
        found: list[State] = []
        for name in names:
            arrays = self.value(name) if name else []
            equal = all(
                a.shape == arrays[0].shape and np.array_equal(a, arrays[0], equal_nan=a.dtype.kind == "f")
                for a in arrays
            )
            found.append(lattice.whole_value(arrays[0].shape, self.bundle.tp) if equal and name else Free.VARIES)
        return found

    def sizes(self, names: list[str]) -> list[State]:
        """Whole where all ranks have the same sizes or positions (numbers of at most one axis), else VARIES.

        Other values may be equal by chance of this run's inputs: ids that are all 0, masks that are all true.
        """
        found = self.compared(names)
        small = [self.value(name)[0] if name else np.zeros((1, 1)) for name in names]
        return [
            state if a.ndim <= 1 and a.dtype.kind == "i" else Free.VARIES for state, a in zip(found, small, strict=True)
        ]

    def step(self, nodes: list[onnx.NodeProto]) -> None:
        """Follow one operation."""
        node = nodes[0]
        outputs = list(node.output)
        inputs: list[State | None] = [
            self.found.states.get(name, Free.UNKNOWN) if name else None for name in node.input
        ]
        outer = [self.found.states.get(name, Free.UNKNOWN) for name in reads(node)]
        self.found.operations += 1
        whole = all(isinstance(state, Lies) and state.whole for state in outer)
        if Free.UNKNOWN in outer and not is_collective(node):
            states: list[State] = [Free.UNKNOWN] * len(outputs)
        elif node.op_type in ("Shape", "Size") or (whole and not is_collective(node) and node.op_type != "Expand"):
            states = self.compared(outputs)
        else:
            states = self.ruled(nodes, inputs, outer, outputs)
        self.found.states.update((name, state) for name, state in zip(outputs, states, strict=False) if name)

    def ruled(
        self, nodes: list[onnx.NodeProto], inputs: list[State | None], outer: list[State], outputs: list[str]
    ) -> list[State]:
        node, faults = nodes[0], self.found.faults
        before = len(faults)
        site = Site(nodes, inputs, self.value, self.stored, self.asked, self.whole_shape, faults)
        try:
            rule = RULES.get(node.op_type)
            if rule is None:
                raise Undecided("the checker has no rule for it")
            states = rule(site)
            for name, state in zip(outputs, states, strict=False):
                self.fits(name, state)
            return states
        except Undecided as undecided:
            del faults[before:]
            if all(isinstance(state, Lies) and state.settled for state in outer) and not is_collective(node):
                return self.compared(outputs)
            if Free.VARIES in outer and all(
                state is Free.VARIES or (isinstance(state, Lies) and state.settled) for state in outer
            ):
                return self.sizes(outputs)
            self.found.undecided.append(f"{node.op_type} {node.name or outputs[0]}: {undecided}")
            if is_collective(node):
                return [state if isinstance(state, Lies) else Free.UNKNOWN for state in self.compared(outputs)]
            return [Free.UNKNOWN] * len(outputs)

    def fits(self, name: str, state: State) -> None:
        """A rule's answer must have the lengths that the run has."""
        if name and isinstance(state, Lies):
            lengths = [axis.lengths for axis in state.axes]
            shapes = list(zip(*(array.shape for array in self.value(name)), strict=False))
            if lengths != shapes:
                raise Undecided(f"its result was thought to have lengths {lengths}, it has {shapes}")

    def end(self) -> None:
        """Outputs must lie as bundle.json says."""
        for value in self.bundle.ranks[0].graph.output:
            state, place = self.found.states.get(value.name, Free.UNKNOWN), self.bundle.placement("outputs", value.name)
            if not isinstance(state, Lies):
                self.found.undecided.append(f"output {value.name}: {state.value}")
            elif not state.finished:
                self.found.faults.append(
                    Fault("TP524", f"output {value.name}", f"is {state}: a collective is missing", REMEDY)
                )
            else:
                wanted = _placed(place, self.value(value.name))
                pairs = list(zip(state.axes, wanted.axes, strict=False)) if isinstance(wanted, Lies) else []
                if len(pairs) != len(state.axes) or any(lattice.meet(a, b) is None for a, b in pairs):
                    self.found.faults.append(
                        Fault("TP529", f"output {value.name}", f"is {state}, by bundle.json it is {wanted}", REMEDY)
                    )


def _placed(placement: Placement | None, arrays: list[Array]) -> State:
    """The state of an input or output that lies by its placement; VARIES where the lengths do not fit it."""
    axes = [lattice.whole(size, len(arrays)) for size in arrays[0].shape]
    if placement:
        held = [np.concatenate([np.arange(start, stop) for start, stop in mine]) for mine in placement.ranges]
        axes[placement.axis] = lattice.cut(placement.global_size, held)
    return (
        Lies(tuple(axes))
        if [axis.lengths for axis in axes] == list(zip(*(a.shape for a in arrays), strict=True))
        else Free.VARIES
    )


def _tiled(parts: tuple[Part, ...]) -> State:
    """The state of a stored tensor; where some ranks hold zeros in its stead it is partial."""
    axes = []
    holders = [part for part in parts if not part.zeroed]
    for at in range(len(parts[0].indices)):
        size = 1 + max(int(part.indices[at].max(initial=-1)) for part in holders)
        axes.append(
            lattice.cut(size, [np.where(part.indices[at] < 0, lattice.PADDING, part.indices[at]) for part in parts])
        )
    shares = tuple(None if part.zeroed else 0 for part in parts)
    return Lies(tuple(axes), frozenset({shares}) if None in shares else frozenset())


def follow(bundle: Bundle, tiling: Tiling, trace: Trace, shapes: Mapping[str, tuple[int, ...]]) -> Followed:
    """Follow every value from the inputs and stored tensors to the outputs, on all ranks at once.

    `shapes` are those of the source's values in the same run: a Reshape of parts can often be read in several ways, of
    which they choose one. Nothing is believed because of them: what the rule concludes must fit what is read later.
    """
    follower = _Follower(bundle, tiling, trace, shapes)
    made: list[Mapping[str, onnx.NodeProto]] = [
        {node.output[0]: node for node in model.graph.node} for model in bundle.ranks
    ]
    follower.start()
    for node in bundle.ranks[0].graph.node:
        nodes = [nodes[node.output[0]] for nodes in made if node.output[0] in nodes]
        if len(nodes) == bundle.tp and all(
            (n.op_type, list(n.input)) == (node.op_type, list(node.input)) for n in nodes
        ):
            follower.step(nodes)
        else:
            follower.found.undecided.append(
                f"{node.op_type} {node.name or node.output[0]}: the ranks have different operations here"
            )
            follower.found.states.update(dict.fromkeys(node.output, Free.UNKNOWN))
    follower.end()
    return follower.found
