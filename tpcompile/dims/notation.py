"""The notation of rules, "... m k, ... k n -> ... m n": letters are dims, equal ones are one, "..." broadcasts."""

from __future__ import annotations

from dataclasses import dataclass

from tpcompile.dims.dim import Dim
from tpcompile.dims.relation import NotCovered, Relation


@dataclass(frozen=True)
class Notation:
    """A parsed line: the axis names of each input and output ("..." at most once in each, first)."""

    text: str
    inputs: tuple[tuple[str, ...], ...]
    outputs: tuple[tuple[str, ...], ...]

    def apply(self, relation: Relation) -> dict[str, Dim]:
        """Relate the operands as the line says; returns the dim of each letter."""
        letters: dict[str, Dim] = {}
        ellipsis: list[list[Dim]] = []
        for names, axes_of, count in (
            *((names, relation.input, k) for k, names in enumerate(self.inputs) if relation.has(k)),
            *(
                (names, relation.output, k)
                for k, names in enumerate(self.outputs)
                if k < len(relation.outputs) and relation.outputs[k] is not None
            ),
        ):
            axes = axes_of(count)
            named = [name for name in names if name != "..."]
            if len(axes) < len(named) or ("..." not in names and len(axes) != len(named)):
                raise NotCovered(f"operand of rank {len(axes)} does not fit '{' '.join(names)}'")
            rest = axes[: len(axes) - len(named)]
            if "..." in names:
                ellipsis.append(rest)
            for name, dim in zip(named, axes[len(rest) :], strict=True):
                relation.pair(letters.setdefault(name, dim), dim)
        if ellipsis:
            target = ellipsis[-1]
            for axes in ellipsis[:-1]:
                for dim, out in zip(reversed(axes), reversed(target), strict=False):
                    relation.pair_or_broadcast(dim, out)
        return letters


def parse(text: str) -> Notation:
    """Parse a line of the notation.

    Raises:
        ValueError: no "->", or "..." not in front.
    """
    left, arrow, right = text.partition("->")
    if not arrow:
        raise ValueError(f"'{text}' lacks '->'")
    sides = [tuple(tuple(operand.split()) for operand in side.split(",")) for side in (left, right)]
    for names in (*sides[0], *sides[1]):
        if "..." in names[1:]:
            raise ValueError(f"'...' must come first in '{' '.join(names)}'")
    return Notation(text, sides[0], sides[1])
