"""Rewrite the graph under a cut: weights sliced, what depends on local sizes made local, collectives where needed.

Every node runs on the versions of its operands that are cut along the leaves it may be cut along. What an operand lacks
is made first: a pending sum is reduced, a cut that the node cannot take is gathered, a whole value is sliced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tpcompile.dims.analysis import Analysis, is_metadata
from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim
from tpcompile.dims.flow import PartialFlow
from tpcompile.dims.placement import NONE, Leaves, active_leaves, door_leaves, within
from tpcompile.graph.local import LocalNode, LocalProgram, Placed
from tpcompile.graph.program import Node, Sizes, Value
from tpcompile.passes.emit import Emitter
from tpcompile.passes.gradients import Gradients
from tpcompile.passes.local_sizes import LocalSizes
from tpcompile.passes.masked_lookup import mask_rows, masked_ids
from tpcompile.passes.parallel_loss import cross_entropy_of_parts
from tpcompile.passes.shared_range import quantize_with_shared_range
from tpcompile.passes.versions import Versions

DRAWN = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
MEASURES = ("Shape", "Size", "sym_size")
"""Operators that read nothing of a value but its sizes; PyTorch's last one gives that of one axis."""


@dataclass
class Rewriter:
    """Makes the program of all ranks.

    Args:
        analysis: the relations.
        cut: the leaves that are cut, and how.
        cut_doors: graph inputs and outputs that stay cut.
        describe: a size as the source spells it.
        because: why a node's sum is reduced or a value gathered, for the manifest.
        reduce_dtype: "float32" to sum half precision in float32, "model" to sum it as it is.
        gathered: weights that are stored cut and gathered before use.
        training: whether gradients are computed: what a rank reads whole and uses for its part alone is copied first,
            by an operator that sums gradients over the ranks (Megatron's f; an AllReduce forward is its g).
    """

    analysis: Analysis
    cut: Cut
    cut_doors: frozenset[Value]
    describe: Callable[[Sizes], str | None]
    because: Callable[[Node], str]
    reduce_dtype: str = "float32"
    gathered: frozenset[Value] = frozenset()
    training: bool = False

    def run(self) -> LocalProgram:
        program = self.analysis.program
        self.emitter = Emitter(self.cut.mesh, list(program.values), program.opsets.get("", 0))
        self.versions = Versions(self.analysis, self.cut, self.emitter, self.describe, self.reduce_dtype, self.gathered)
        self.sizes = LocalSizes(self.emitter, lambda node, index: self._operand(node, index, NONE))
        self.active = {node: active_leaves(self.analysis, self.cut, node) for node in self.analysis.relations}
        self._natives()
        self.gradients = Gradients(self.analysis, self.cut, self.versions, self.active) if self.training else None
        self.versions.gradients = self.gradients
        summed = {node: self._summed(node) for node in self.analysis.relations}
        self.flow = PartialFlow(self.analysis, lambda node: summed[node], self._cut_of)
        flow = self.flow.run()
        self.versions.partial = flow.partial
        for value, nodes in flow.sources.items():
            self.versions.because[value] = "; ".join(sorted(self.because(node) for node in nodes))
        for value in program.outputs:
            self.versions.final[value] = self._at_door(value)
        for node in program.nodes:
            self.emitter.region = node.region
            if is_metadata(node):
                self._metadata(node)
            else:
                self._node(node)
        self.emitter.region = None
        self._doors()
        program_of_ranks = self.emitter.program
        for (value, held, _), name in self.versions._names.items():
            program_of_ranks.layouts[name] = (value, self.cut.only(held))
        place = {node: k for k, node in enumerate(program_of_ranks.in_file_order())}
        program_of_ranks.collectives.sort(key=lambda call: place[call.node])
        return program_of_ranks

    # -- what is cut where -------------------------------------------

    def _natives(self) -> None:
        for value in self.analysis.program.inputs:
            self.versions.native[value] = self._at_door(value)
        for value in self.analysis.program.weights:
            if value.weight is not None and value.weight.single:
                self.versions.native[value] = self._stored_along(value)
        for node, active in self.active.items():
            for output in node.outputs:
                if output is not None:
                    self.versions.native[output] = within(self.analysis.axes[output], active)
                    self.versions.because[output] = self.because(node)

    def _stored_along(self, value: Value) -> Leaves:
        """The leaves along which a weight that is stored once is cut: those that all its readers want."""
        wanted = [within(self.analysis.axes[value], self.active[node]) for node, _ in value.consumers]
        if not wanted or value in self.gathered or value in self.analysis.program.outputs:
            return NONE
        return frozenset.intersection(*wanted)

    def _at_door(self, value: Value) -> Leaves:
        stored = next((stored for stored, made in self.analysis.program.written if made is value), None)
        if stored is not None:  # what is written lies as what is stored
            return self._stored_along(stored)
        return door_leaves(self.analysis, self.cut, self.cut_doors, value)

    def _cut_of(self, value: Value) -> frozenset[int]:
        return frozenset(axis for leaf in self.versions.native.get(value, NONE) for axis in self.cut.of(leaf))

    def _summed(self, node: Node) -> frozenset[int]:
        local = self.cut.only(self.active[node])
        return frozenset().union(*(local.touched(reduced.dim) for reduced in self.analysis.relations[node].reduced))

    # -- nodes -------------------------------------------------------

    def _metadata(self, node: Node) -> None:
        """Shape arithmetic stays global: what does not depend on inputs is folded, `Shape` of a cut value corrected."""
        if all(output is None or (output.fixed and _folds(output)) for output in node.outputs):
            for output in node.outputs:
                if output is not None and output.known is not None:
                    self.versions._names[output, NONE, True] = self.emitter.constant(output.name, output.known[0])
            if not any(output in self.versions.final for output in node.outputs):
                return
        source = node.inputs[0] if node.inputs else None
        output = node.outputs[0]
        if node.op in MEASURES and source is not None and output is not None and self.versions.native.get(source):
            self._shape_of(node, source, output)
            return
        inputs = []
        for index, value in enumerate(node.inputs):
            if value is None:
                inputs.append("")
            elif node.op in MEASURES:
                inputs.append(
                    self.versions.native_name(value) if value.weight is None else self._operand(node, index, NONE)
                )
            else:
                inputs.append(self._operand(node, index, NONE))
        for value in node.outputs:
            if value is not None:
                self.versions._names.pop((value, NONE, True), None)
        self._append(node, inputs, [self.versions.native_name(v) if v is not None else "" for v in node.outputs])

    def _shape_of(self, node: Node, source: Value, output: Value) -> None:
        """The global shape of a value that is cut: local sizes times global over local."""
        held = self.cut.only(self.versions.native[source])
        axes = self.analysis.axes[source] or []
        start, end = node.attribute("start", 0), node.attribute("end")
        kept = axes[start:end] if node.op == "Shape" else axes
        if node.op == "sym_size":
            kept = [axes[node.attribute("dim")]]
        ratios = [[held.ratio(dim, rank) for dim in kept] for rank in range(self.cut.mesh.tp)]
        if node.op == "Size":
            ratios = [[(int(np.prod([a for a, _ in each])), int(np.prod([b for _, b in each])))] for each in ratios]
        name = self.versions.native_name(output)
        if all(a == b for each in ratios for a, b in each):
            self._append(node, [self.versions.native_name(source)], [name])
            return
        local = self.emitter.name(f"{name}.local")
        self._append(node, [self.versions.native_name(source)], [local])
        scalar = node.op != "Shape"
        up = self.emitter.per_rank(f"{name}.global", [[b for _, b in each] for each in ratios], scalar)
        down = self.emitter.per_rank(f"{name}.held", [[a for a, _ in each] for each in ratios], scalar)
        self.emitter.node(
            "Div", [self.emitter.node("Mul", [local, up], self.emitter.name(f"{name}.scaled")), down], name
        )

    def _operand(
        self, node: Node, index: int, want: Leaves, *, summed: bool = True, mask: frozenset[int] = frozenset()
    ) -> str:
        value = node.inputs[index]
        if value is None:
            return ""
        if value.weight is not None and not value.weight.single:
            axes = self.analysis.operand_axes(node, index) or []
            return self.versions.stored(value, axes, want, mask)
        name = self.versions.get(value, want, summed=summed)
        return self._masked(name, value, mask) if mask else name

    def _masked(self, name: str, value: Value, mask: frozenset[int]) -> str:
        """The value on the rank that starts each group over `mask`, zero on the others, where 0 · ∞ would not be."""
        starts = [np.array(self.versions.starts(rank, mask)) for rank in range(self.cut.mesh.tp)]
        once = self.emitter.constant("tpcompile.once", starts)
        nothing = self.emitter.scalars("tpcompile.nothing", [0] * self.cut.mesh.tp, value.dtype)
        return self.emitter.node("Where", [once, name, nothing], self.emitter.name(f"{name}.once"))

    def _node(self, node: Node) -> None:
        relation, active = self.analysis.relations[node], self.active[node]
        passing = self.flow.passing(node)
        own = self._summed(node)
        pending = frozenset().union(*(self.versions.partial.get(v, frozenset()) for v in node.outputs if v is not None))
        inputs: list[str] = []
        for index, value in enumerate(node.inputs):
            if value is None:
                inputs.append("")
                continue
            passes = value in passing and index in relation.linear
            held = self.versions.partial.get(value, frozenset()) if passes else frozenset()
            mask = (
                pending - held
                if relation.joint and index in relation.linear and pending
                else own
                if index in relation.once
                else frozenset()
            )
            want = within(relation.inputs[index], active)
            name = self._operand(node, index, want, summed=not passes, mask=mask)
            if self.gradients is not None:
                name = self.gradients.operand(node, value, name, want, held | mask)
            inputs.append(name)
        outputs = [self.versions.native_name(v) if v is not None else "" for v in node.outputs]
        if self.gradients is not None and self.gradients.divides(node):
            outputs = [name and self.emitter.name(f"{name}.undivided") for name in outputs]
        self._emit(node, inputs, outputs)
        if self.gradients is not None and self.gradients.divides(node):
            for value, name in zip(node.outputs, outputs, strict=True):
                if value is not None:
                    self.gradients.divided(value, name, self.versions.native_name(value))

    def _emit(self, node: Node, inputs: list[str], outputs: list[str]) -> None:
        """The node itself, for versions of its operands: as it stands, or as its relation asks for."""
        relation, active = self.analysis.relations[node], self.active[node]
        own = self._summed(node)
        if node.op in DRAWN and self.cut.axes:
            self._drawn(node, inputs, outputs)
            return
        if relation.lookup is not None and own:
            ids, mine = masked_ids(self.emitter, relation, self.cut.only(active), inputs[1], outputs[0])
            found, operands = self.emitter.name(f"{outputs[0]}.found"), [inputs[0], ids, *inputs[2:]]
            self._append(node, operands, [found], *self.sizes.apply(node, relation, self.cut.only(active), operands))
            mask_rows(self.emitter, node.outputs[0], found, mine, outputs[0])
            return
        if relation.spread is not None and self.cut.only(active).leaves(relation.spread):
            rows = self.versions.size_text(relation.input(0)[0])
            cross_entropy_of_parts(
                self.emitter, node, inputs, outputs[0], relation.spread, self.cut.only(active), rows, self.because(node)
            )
            return
        spread = self.cut.only(active).touched(relation.product(*relation.input(0))) if relation.ranged else None
        if spread:
            over, because = tuple(sorted(spread)), self.because(node)
            quantize_with_shared_range(self.emitter, node, inputs[0], outputs, over, because)
            return
        attributes, dropped = self.sizes.apply(node, relation, self.cut.only(active), inputs)
        means = [
            reduced.dim for reduced in relation.reduced if reduced.mean and self.cut.only(active).leaves(reduced.dim)
        ]
        if means:
            final = outputs[0]
            outputs[0] = self.emitter.name(f"{final}.mean")
            self._append(node, inputs, outputs, attributes, dropped)
            self._weigh(node, means, outputs[0], final)
        else:
            self._append(node, inputs, outputs, attributes, dropped)

    def _append(
        self,
        node: Node,
        inputs: list[str],
        outputs: list[str],
        attributes: Mapping[str, object] | None = None,
        dropped: frozenset[str] = frozenset(),
    ) -> None:
        renamed = {}
        for value in node.captured:
            name = (
                self.versions.get(value, NONE)
                if value.weight is None
                else self.versions.stored(value, self.analysis.axes[value] or [], NONE)
            )
            if name != value.name:
                renamed[value.name] = name
        made = LocalNode(node.op, node.domain, node.name, inputs, outputs, dict(attributes or {}), node.origin, dropped)
        made.renamed, made.captured, made.regions = renamed, tuple(value.name for value in node.captured), node.regions
        self.emitter.append(made)

    def _drawn(self, node: Node, inputs: list[str], outputs: list[str]) -> None:
        """Random numbers are drawn by rank 0 for all: ranks that drew their own would no longer agree on anything."""
        value, final = node.outputs[0], outputs[0]
        if value is None:
            return
        drawn = self.emitter.name(f"{final}.drawn")
        self._append(node, inputs, [drawn, *outputs[1:]])
        shapes = self.versions.shapes(value, NONE) if value.sizes is not None else [[] for _ in range(self.cut.mesh.tp)]
        self.emitter.collective(
            "broadcast", drawn, final, self.cut.mesh.all_axes, value=value, shapes=shapes,
            nbytes=self.versions.bytes_text(value.dtype, shapes[0]),
            because=f"{node.op} {node.name} draws numbers", root=0,
        )  # fmt: skip

    def _weigh(self, node: Node, means: Sequence[Dim], local: str, output: str) -> None:
        """A mean over a cut axis: each rank's mean counts by its share of the elements."""
        held = self.cut.only(self.active[node])
        shares = []
        for rank in range(self.cut.mesh.tp):
            share = 1.0
            for dim in means:
                mine, whole = held.ratio(dim, rank)
                share *= mine / whole
            shares.append(share)
        value = node.outputs[0]
        self.emitter.node(
            "Mul", [local, self.emitter.scalars(f"{output}.share", shares, value.dtype if value else None)], output
        )

    # -- doors -------------------------------------------------------

    def _doors(self) -> None:
        program = self.analysis.program
        for value in program.outputs:
            want = self.versions.final[value]
            name = (
                self.versions.stored(value, self.analysis.axes[value] or [], want)
                if value.weight is not None and not value.weight.single
                else self.versions.get(value, want)
            )
            if name != value.name:
                self.emitter.node("Identity", [name], value.name)
        for value in {*program.inputs, *program.outputs}:
            place = self._placed(value, self._at_door(value))
            if place is not None:
                self.emitter.program.doors[value.name] = place
        for (value, held, summed), name in self.versions._names.items():
            if name == value.name and value.weight is None and (held or not summed):
                place = self._placed(value, held) if held else Placed()
                if place is not None:
                    groups = (
                        ()
                        if summed
                        else tuple(map(tuple, self.cut.mesh.groups(tuple(sorted(self.versions.partial[value])))))
                    )
                    self.emitter.program.placed[name] = Placed(place.axis, place.ranges, groups)

    def _placed(self, value: Value, held: Leaves) -> Placed | None:
        """Where the parts lie if exactly one axis is cut and its size does not depend on inputs."""
        local = self.cut.only(held)
        axes = [k for k, dim in enumerate(self.analysis.axes[value] or ()) if local.leaves(dim)]
        dims = self.analysis.axes[value] or []
        if len(axes) != 1 or not dims[axes[0]].static:
            return None
        found = [self.versions.ranges(dims[axes[0]], held, rank) for rank in range(self.cut.mesh.tp)]
        return Placed(axes[0], tuple(ranges for ranges in found if ranges is not None))


def _folds(value: Value) -> bool:
    """Whether a known value may be stored instead of computed: whole numbers only, floats keep their own rounding."""
    return value.known is not None and value.known[0].dtype.kind in "iub"
