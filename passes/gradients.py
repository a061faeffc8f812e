"""Gradients of a program of all ranks: where they must be summed over ranks.

A value that ranks have whole has the same gradient on all of them, as long as what reads it is whole too. What makes
only a rank's part of its result gives a part of the gradient: such an operand passes a copy first, whose backward pass
is an AllReduce (f of Megatron, Shoeybi et al. 2019; an AllReduce forward, its g, has the identity). So each value is
summed once in each direction, whatever the number of its readers, and weights that ranks have whole end up with whole
gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpcompile.dims.analysis import Analysis, is_metadata
from tpcompile.dims.cut import Cut
from tpcompile.dims.placement import NONE, Leaves
from tpcompile.graph.local import LocalSize
from tpcompile.graph.program import Node, Value

if TYPE_CHECKING:
    from tpcompile.passes.versions import Versions

FLOATS = ("float", "bfloat")
STOPS = frozenset(("detach", "noise", "argmax", "ArgMax"))
"""Operators through which no gradient passes."""


@dataclass
class Gradients:
    """Puts copies before what makes parts."""

    analysis: Analysis
    cut: Cut
    versions: Versions
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
        over = self._over(want) | apart
        made = frozenset().union(*(self._made_over(output) for output in node.outputs if output is not None))
        return self.copied(value, name, made - over, self.versions.shapes(value, want) if value.sizes else [])

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

    def _made_over(self, output: Value) -> frozenset[int]:
        """The sub-axes over which ranks make different parts of a value, or of a sum."""
        return self._over(self.versions.native.get(output, NONE)) | self.versions.partial.get(output, frozenset())


def _differentiable(analysis: Analysis) -> set[Value]:
    """Values that may have a gradient: trained weights, inputs of real numbers, and what is made of them."""
    program = analysis.program
    found = {value for value in program.weights if value.weight is not None and value.weight.trained}
    found |= {value for value in program.inputs if (value.dtype or "").startswith(FLOATS)}
    for node in program.nodes:
        if is_metadata(node) or node.op in STOPS or found.isdisjoint(v for v in node.inputs if v is not None):
            continue
        found |= {v for v in node.outputs if v is not None and (v.dtype or "").startswith(FLOATS)}
    return found
