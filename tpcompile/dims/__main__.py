"""`python -m tpcompile.dims` prints the table of rules: which operators are understood, and what is said of each."""

from __future__ import annotations

from collections.abc import Iterator

from tpcompile.dims import rules as _rules  # noqa: F401 - fills the table
from tpcompile.dims.registry import RULES, Rule


def table() -> Iterator[str]:
    """A line per operator, in the order of the alphabet: its name, its domain, and what its rule says."""
    rows = sorted(RULES.values(), key=lambda rule: (rule.op.lower(), rule.op, rule.domain))
    names = max(len(rule.op) for rule in rows)
    domains = max(len(rule.domain or "ai.onnx") for rule in rows)
    for rule in rows:
        yield f"{rule.op:{names}}  {rule.domain or 'ai.onnx':{domains}}  {_said(rule)}"


def _said(rule: Rule) -> str:
    notation = f'"{rule.notation.text}"  ' if rule.notation is not None else ""
    return notation + (rule.body.__doc__ or "").strip().splitlines()[0].strip()


if __name__ == "__main__":
    print("\n".join(table()))
