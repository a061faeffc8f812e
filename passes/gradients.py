"""Gradients of a program of all ranks: where they must be summed over ranks.

A value that ranks have whole has the same gradient on all of them, as long as what reads it is whole too. What makes
only a rank's part of its result gives a part of the gradient: such an operand passes a copy first, whose backward pass
is an AllReduce (f of Megatron, Shoeybi et al. 2019; an AllReduce forward, its g, has the identity). So each value is
summed once in each direction, whatever the number of its readers, and weights that ranks have whole end up with whole
gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpcompile.dims.analysis import Analysis, is_metadata
from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim
from tpcompile.dims.placement import NONE, Leaves, within
from tpcompile.graph.local import LocalSize
from tpcompile.graph.program import Node, Value
from tpcompile.passes.shared_parts import holders

if TYPE_CHECKING:
    from tpcompile.passes.versions import Versions

FLOATS = ("float", "bfloat", "complex")
STOPS = frozenset(("detach", "noise", "argmax", "ArgMax"))
"""Operators through which no gradient passes."""


@dataclass
class Gradients:
    """Puts copies before what makes parts."""

    analysis: Analysis
    cut: Cut
    versions: Versions
    active: Mapping[Node, Leaves]
    """The leaves along which each node runs cut."""
    _copies: dict[tuple[str, frozenset[int]], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.differentiable = set(_differentiable(self.analysis))

    def operand(self, node: Node, value: Value, name: str, want: Leaves, apart: frozenset[int]) -> str:
        """The operand as the node reads it, copied where the node makes parts of what it has whole.

        Args:
            node: the reader.
            value: the operand's value, of which `name` is a version cut along `want`.
            name: of that version.
            want: the leaves along which it is cut.
            apart: the sub-axes over which the operand is a pending sum, or counts on one rank only.
        """
        over = self._made(node) - self._over(want) - apart
        if self.divides(node) and value.sizes:
            name = self.shared(value, name, want, self._made(node), inverse=False)
        return self.copied(value, name, over, self.versions.shapes(value, want) if value.sizes else [])

    def divides(self, node: Node) -> bool:
        """Whether gradients of a node's outputs are divided among the ranks that hold the same elements of them.

        That is where what it has whole gets a sum of what all ranks send back.
        """
        made = self._made(node)
        if not any(self._uneven(output) for output in node.outputs if output in self.differentiable):
            return False
        relation, active = self.analysis.relations[node], self.active[node]
        return any(
            value in self.differentiable and made - self._over(within(axes, active))
            for value, axes in zip(node.inputs, relation.inputs, strict=True)
        )

    def divided(self, value: Value, name: str, output: str) -> None:
        """Give an output of a node that `divides` its own name."""
        held = self.versions.native.get(value, NONE)
        made = self.shared(value, name, held, self._over(held), inverse=True)
        self.versions.emitter.node("Identity", [made], output)

    def shared(self, value: Value, name: str, held: Leaves, over: frozenset[int], *, inverse: bool) -> str:
        """A version whose gradient is multiplied by how many ranks that differ on `over` hold each element.

        It is divided by that if `inverse`.
        """
        axes = self.analysis.axes[value] or []
        for axis, dim in enumerate(axes):
            if self.alike(value, dim, held, over):
                made = self.versions.emitter.name(f"{name}.shared")
                name = self.along(name, axis, len(axes), dim, held, over, made, inverse=inverse)
        return name

    def alike(self, value: Value, dim: Dim, held: Leaves, over: frozenset[int]) -> bool:
        """Whether ranks that differ on `over` hold some elements of an axis alike, and others not."""
        return value in self.differentiable and holders(self.cut.only(held), dim, 0, over) is not None

    def along(
        self, name: str, axis: int, rank: int, dim: Dim, held: Leaves, over: frozenset[int], output: str, *,
        inverse: bool,
    ) -> str:  # fmt: skip
        """What `shared` does, for one axis of a tensor of `rank` axes."""
        cut, shape = self.cut.only(held), [-1 if k == axis else 1 for k in range(rank)]
        factors = []
        for k in range(cut.mesh.tp):
            counts = holders(cut, dim, k, over)
            if counts is not None:
                factors.append((1 / counts if inverse else counts).reshape(shape))
        emitter = self.versions.emitter
        return emitter.node("ScaleGradient", [name, emitter.constant(f"{output}.holders", factors)], output)

    def copied(self, value: Value, name: str, over: frozenset[int], shapes: Sequence[Sequence[LocalSize]]) -> str:
        """A version whose gradient is summed over ranks that differ on `over`."""
        if not over or value not in self.differentiable:
            return name
        key = (name, over)
        if key not in self._copies:
            emitter = self.versions.emitter
            inside, emitter.region = emitter.region, value.region
            ranks = emitter.mesh.tp
            self._copies[key] = emitter.collective(
                "copy", name, emitter.name(f"{name}.copy"), tuple(sorted(over)), value=value,
                shapes=shapes or [[]] * ranks,
                nbytes=self.versions.bytes_text(value.dtype, shapes[0] if shapes else []),
                because=f"the gradient of {value.name} is summed over ranks",
            )  # fmt: skip
            emitter.region = inside
        return self._copies[key]

    def _over(self, held: Leaves) -> frozenset[int]:
        return frozenset(axis for leaf in held for axis in self.cut.of(leaf))

    def _made(self, node: Node) -> frozenset[int]:
        """The sub-axes over which ranks make different parts of a node's outputs, or of sums."""
        made = [
            self._over(self.versions.native.get(output, NONE)) | self.versions.partial.get(output, frozenset())
            for output in node.outputs
            if output is not None
        ]
        return frozenset().union(*made)

    def _uneven(self, output: Value | None) -> bool:
        """Whether some elements of a value are cut as its node makes it, and others not."""
        if output is None:
            return False
        cut = self.cut.only(self.versions.native.get(output, NONE))
        return any(cut.covered(dim) != cut.touched(dim) for dim in self.analysis.axes[output] or ())


def _differentiable(analysis: Analysis) -> set[Value]:
    """Values that may have a gradient: trained weights, inputs of real or complex numbers, and what is made of them."""
    program = analysis.program
    found = {value for value in program.weights if value.weight is not None and value.weight.trained}
    found |= {value for value in program.inputs if (value.dtype or "").startswith(FLOATS)}
    for node in program.nodes:
        if is_metadata(node) or node.op in STOPS or found.isdisjoint(v for v in node.inputs if v is not None):
            continue
        found |= {v for v in node.outputs if v is not None and (v.dtype or "").startswith(FLOATS)}
    return found
