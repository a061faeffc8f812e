"""The table of rules: which operators are understood, and how to say it in a line.

@rule("MatMul", "... m k, ... k n -> ... m n", sums="k")
def matmul(op):
    "Column parallel (n) needs nothing; row parallel (k) leaves a partial sum."
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tpcompile.dims.notation import Notation, parse
from tpcompile.dims.relation import NotCovered, Relation

Body = Callable[[Relation], None]
Written = TypeVar("Written", bound=Body)


@dataclass(frozen=True)
class Rule:
    """One operator's rule: a line of notation, a body that says more, or both."""

    op: str
    domain: str
    notation: Notation | None
    sums: tuple[str, ...]
    wholes: tuple[str, ...]
    linear: tuple[int, ...]
    joint: bool
    body: Body
    why_whole: str

    def apply(self, relation: Relation) -> None:
        """Relate the operands of a node; raises NotCovered where this form of the operator has no relation here."""
        if self.notation is not None:
            letters = self.notation.apply(relation)
            for letter in self.sums:
                relation.sums(letters[letter])
            for letter in self.wholes:
                relation.whole(letters[letter], self.why_whole or f"{self.op} needs all of it")
        if self.linear:
            relation.passes_partials(*self.linear, joint=self.joint)
        self.body(relation)


RULES: dict[tuple[str, str], Rule] = {}


def rule(
    ops: str,
    notation: str | None = None,
    *,
    domain: str = "",
    sums: str = "",
    whole: str = "",
    linear: tuple[int, ...] = (),
    joint: bool = False,
    why: str = "",
) -> Callable[[Written], Written]:
    """Register the rule of one or several operators (separated by spaces).

    Args:
        ops: operator names.
        notation: relates the axes of operands by letters.
        domain: "" is ai.onnx, "aten" PyTorch's.
        sums: letters the operator sums over: where cut, the output is a partial sum.
        whole: letters the operator needs all of, on both sides.
        linear: operands from which partial sums pass to the outputs; `joint` if only all together.
        why: the reason shown where `whole` costs something.

    Raises:
        ValueError: an operator is registered twice.
    """

    def register(body: Written) -> Written:
        for op in ops.split():
            if (domain, op) in RULES:
                raise ValueError(f"{domain or 'ai.onnx'}.{op} has a rule already")
            RULES[domain, op] = Rule(
                op,
                domain,
                parse(notation) if notation else None,
                tuple(sums.split()),
                tuple(whole.split()),
                linear,
                joint,
                body,
                why,
            )
        return body

    return register


def find_rule(domain: str, op: str) -> Rule:
    """The rule of an operator.

    Raises:
        NotCovered: there is none.
    """
    found = RULES.get(("" if domain == "ai.onnx" else domain, op))
    if found is None and domain == "aten":  # what is read as a standard operator
        found = RULES.get(("", op))
    if found is None:
        raise NotCovered(f"{op} has no rule")
    return found
