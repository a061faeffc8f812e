"""The layout checker: shapes and placements derived again from the rank files alone.

It shares no code with the compiler's rules. Followed through every operator from the stored parts and the placed
inputs, is every value whole, cut or partial as its readers need it?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from tpcompile.bundle.manifest import Placement
from tpcompile.errors import Fault
from tpcompile.graph.scopes import read_names
from tpcompile.targets.collectives import is_collective
from tpcompile.verify import lattice
from tpcompile.verify.branches import branches, walk
from tpcompile.verify.files import Array, Bundle
from tpcompile.verify.inputs import input_values
from tpcompile.verify.lattice import Free, Lies, State
from tpcompile.verify.rules import rule_of
from tpcompile.verify.rules.site import Site, Undecided
from tpcompile.verify.simulate import REMEDY, Trace
from tpcompile.verify.tiles import Part, Tiling

ALIKE = ("Expand", "ConstantOfShape")
"""Operators whose results may be parts of something larger though their inputs are whole: all entries are alike."""


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
        made = {output: node for node in walk(self.bundle.ranks[0].graph) for output in node.output}
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
            if arrays and all(_same_bits(a, arrays[0]) for a in arrays):
                found.append(lattice.whole_value(getattr(arrays[0], "shape", ()), self.bundle.tp))
            else:
                found.append(Free.VARIES)
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

    def graph(self, held: Sequence[onnx.GraphProto]) -> None:
        """Follow one graph per rank, node by node of rank 0's."""
        made = [{node.output[0]: node for node in graph.node} for graph in held]
        for node in held[0].node:
            nodes = [nodes[node.output[0]] for nodes in made if node.output[0] in nodes]
            if len(nodes) < len(made) or any(
                (n.op_type, list(n.input)) != (node.op_type, list(node.input)) for n in nodes
            ):
                self.found.undecided.append(
                    f"{node.op_type} {node.name or node.output[0]}: the ranks have different operations here"
                )
                self.found.states.update(dict.fromkeys(node.output, Free.UNKNOWN))
            elif node.output[0] in self.trace.taken:
                self.choice(nodes, self.trace.taken[node.output[0]])
            else:
                self.step(nodes)

    def choice(self, nodes: list[onnx.NodeProto], side: str) -> None:
        """Follow the branch that was taken: what it gives lies as the If's outputs; the choice must be everybody's."""
        condition = self.found.states.get(nodes[0].input[0], Free.UNKNOWN)
        where = f"If {nodes[0].name or nodes[0].output[0]}"
        if condition is Free.UNKNOWN:
            self.found.undecided.append(f"{where}: its condition {nodes[0].input[0]!r} is not decided")
        elif not isinstance(condition, Lies) or not condition.settled:
            says = condition if isinstance(condition, Lies) else condition.value
            fact = f"its branches hold collectives, and its condition {nodes[0].input[0]!r} is {says}: it must be whole"
            self.found.faults.append(Fault("TP526", where, fact, REMEDY))
        held = [dict(branches(node))[side] for node in nodes]
        self.graph(held)
        for name, value in zip(nodes[0].output, held[0].output, strict=True):
            self.found.states[name] = self.found.states.get(value.name, Free.UNKNOWN)

    def step(self, nodes: list[onnx.NodeProto]) -> None:
        """Follow one operation."""
        node = nodes[0]
        outputs = list(node.output)
        inputs: list[State | None] = [
            self.found.states.get(name, Free.UNKNOWN) if name else None for name in node.input
        ]
        outer = [self.found.states.get(name, Free.UNKNOWN) for name in read_names(node)]
        self.found.operations += 1
        whole = all(isinstance(state, Lies) and state.whole for state in outer)
        if Free.UNKNOWN in outer and not is_collective(node):
            states: list[State] = [Free.UNKNOWN] * len(outputs)
        elif node.op_type in ("Shape", "Size") or (whole and not is_collective(node) and node.op_type not in ALIKE):
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
            rule = rule_of(node)
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
            if not any(array.size for array in self.value(value.name)):
                continue  # nothing there that could lie wrong: a cache that the other branch fills
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
    follower.start()
    follower.graph([model.graph for model in bundle.ranks])
    follower.end()
    return follower.found


def _same_bits(a: Array | list[Array], b: Array | list[Array]) -> bool:
    """Whether two ranks hold the same tensor, or the same sequence of tensors, which onnxruntime gives as a list."""
    if isinstance(a, list) or isinstance(b, list):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same_bits, a, b))
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
