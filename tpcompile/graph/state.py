"""Which outputs are the next step's inputs (caches), and what other inputs are for: by flow first, names last."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tpcompile.errors import Fault
from tpcompile.graph.program import Node, Program, Value

_SEE_THROUGH = frozenset(("Identity", "Cast", "Reshape", "Transpose", "Unsqueeze", "Squeeze"))
_CACHE_NAMES = re.compile("past|present|cache|key|value")
_INTO_ATTENTION = {
    ("", "Attention"): ((4, 1), (5, 2)),
    ("com.microsoft", "GroupQueryAttention"): ((3, 1), (4, 2)),
    ("com.microsoft", "MultiHeadAttention"): ((6, 1), (7, 2)),
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): ((5, 1), (6, 2)),
    ("com.microsoft", "Attention"): ((4, 1),),
    **{
        (domain, op): ((3, 1),) for domain in ("", "com.microsoft") for op in ("CausalConvWithState", "LinearAttention")
    },
}
"""Operators that take caches or states: (operand, output) pairs."""


@dataclass(frozen=True)
class StatePair:
    """An input and the output that replaces it in the next step, growing along `axis` or written in place."""

    input: Value
    output: Value
    axis: int
    kind: str


def find_state(program: Program, given: Mapping[str, str] | None = None) -> tuple[list[StatePair], list[Fault]]:
    """The caches of a program.

    An output is the successor of an input if it is that input with something appended (Concat), written into
    (Scatter…), or handed through an attention operator, and both have the same type and rank.

    Args:
        program: with sizes.
        given: pairs the user names, input name → output name; they replace what is found for either.

    Returns:
        The pairs in the order of the inputs, and faults of the pairs the user gave.
    """
    inputs = {value.name: value for value in program.inputs}
    outputs = {value.name: value for value in program.outputs}
    found: dict[str, StatePair] = {}
    faults: list[Fault] = []
    for output in program.outputs:
        for source, axis, kind in _origins(output):
            if source in inputs.values() and source.dtype == output.dtype and _alike(source, output, axis):
                found.setdefault(source.name, StatePair(source, output, axis, kind))
    for name, successor in (given or {}).items():
        if name not in inputs or successor not in outputs:
            side, missing = ("input", name) if name not in inputs else ("output", successor)
            remedy = f"Use names of its inputs ({_some(inputs)}) and outputs ({_some(outputs)})"
            faults.append(Fault("TP120", f"--state {name}={successor}", f"the model has no {side} '{missing}'", remedy))
            continue
        a, b = inputs[name], outputs[successor]
        growing = _growing_axis(a, b)
        if a.dtype != b.dtype or growing is None:
            fact = f"they are {a.dtype}{list(a.shape or ())} and {b.dtype}{list(b.shape or ())}"
            remedy = "The two ends of a cache have one type and differ in one axis at most"
            faults.append(Fault("TP121", f"--state {name}={successor}", fact, remedy))
            continue
        found = {key: pair for key, pair in found.items() if pair.output is not b}
        found[name] = StatePair(a, b, max(growing, 0), "append" if growing >= 0 else "in_place")
    return [found[name] for name in inputs if name in found], faults


def _some(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:4]) + (", …" if len(shown) > 4 else "")


def is_cache_name(name: str) -> bool:
    """Whether a name looks like that of a cache: the last resort for caches that only come in, or only go out."""
    return bool(_CACHE_NAMES.search(name))


def is_projected(value: Value) -> bool:
    """Whether an input, as it is or moved, is multiplied with stored tensors: no cache is, pixels and states are."""
    todo = [value]
    while todo:
        for node, _ in todo.pop().consumers:
            if node.op in ("MatMul", "Gemm", "Conv", "Einsum", "linear"):
                if any(other is not None and other.weight is not None for other in node.inputs):
                    return True
            elif node.op in _SEE_THROUGH:
                todo += [output for output in node.outputs if output is not None]
    return False


def _alike(a: Value, b: Value, axis: int) -> bool:
    if a.sizes is None or b.sizes is None:
        return a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape)
    return len(a.sizes) == len(b.sizes) and all(
        x == y for k, (x, y) in enumerate(zip(a.sizes, b.sizes, strict=True)) if k != axis
    )


def _growing_axis(a: Value, b: Value) -> int | None:
    """The one axis in which two values differ, −1 where none does, None where they cannot be a pair."""
    if a.sizes is None or b.sizes is None or len(a.sizes) != len(b.sizes):
        return None
    differ = [k for k, (x, y) in enumerate(zip(a.sizes, b.sizes, strict=True)) if x != y]
    return None if len(differ) > 1 else differ[0] if differ else -1


def _origins(output: Value) -> Iterator[tuple[Value, int, str]]:
    """Values that the output extends or overwrites, with the axis."""
    value, node = output, output.producer
    while node is not None and node.op == "Identity":
        value = _operand(node, 0)
        node = value.producer
    if node is None:
        return
    if node.regions:  # an If: what one of its branches makes
        for branch in range(len(node.regions)):
            end = node.inputs[1 + value.index + branch * len(node.outputs)]
            yield from _origins(end) if end is not None else ()
    elif node.op == "Concat" and node.domain in ("", "aten"):
        first = _operand(node, 0)
        rank = len(first.sizes or ()) or 4
        yield first, int(node.attribute("axis")) % rank, "append"
    elif node.op in ("ScatterND", "ScatterElements", "TensorScatter", "Where"):
        axis = int(node.attribute("axis", -2 if node.op == "TensorScatter" else 2))
        source = _operand(node, 1 if node.op == "Where" else 0)
        yield source, axis % (len(source.sizes or ()) or 4), "in_place"
    for into, out in _INTO_ATTENTION.get((node.domain, node.op), ()):
        if node.outputs[out : out + 1] == [value] and len(node.inputs) > into and node.inputs[into] is not None:
            source = _operand(node, into)
            growing = _growing_axis(source, value)
            if growing is not None and growing >= 0:
                yield source, growing, "append"
            else:
                yield source, 2, "in_place"


def _operand(node: Node, index: int) -> Value:
    found = node.inputs[index]
    if found is None:
        raise ValueError(f"{node.name} lacks operand {index}")
    return found


def find_roles(
    program: Program, pairs: list[StatePair], given: Mapping[str, str] | None = None
) -> tuple[dict[str, str], list[Fault]]:
    """What inputs and outputs are for: tokens, mask, positions, logits (only those that are found).

    tokens is the integer input that looks up the largest table; mask and positions go by name, among the other inputs
    of integer, float or boolean type with two axes; logits is the last floating-point output of three axes (or two)
    that is no cache.
    """
    faults = []
    for role, name in (given or {}).items():
        kind, doors = ("output", program.outputs) if role == "logits" else ("input", program.inputs)
        names = [value.name for value in doors]
        if name not in names:
            fact = f"the model has no {kind} '{name}'"
            faults.append(Fault("TP122", f"--role {role}={name}", fact, f"Use one of {', '.join(names[:8])}"))
    roles: dict[str, str] = {}
    caches = {pair.output for pair in pairs} | {pair.input for pair in pairs}
    tables = {value: _rows_looked_up(value) for value in program.inputs if value.dtype in ("int64", "int32")}
    best = max(tables.values(), default=0)
    if best:
        roles["tokens"] = next(value.name for value, rows in tables.items() if rows == best)
    for value in program.inputs:
        if value.name not in roles.values() and value not in caches and len(value.shape or ()) == 2:
            if "mask" in value.name:
                roles.setdefault("mask", value.name)
            elif "position" in value.name:
                roles.setdefault("positions", value.name)
    if "tokens" in roles:
        plain = [
            v
            for v in program.outputs
            if v not in caches and (v.dtype or "").startswith(("float", "bfloat")) and not is_cache_name(v.name)
        ]
        last = [v for v in plain if v.sizes and len(v.sizes) >= 2 and v.sizes[-1][0] == v.sizes[-1][-1] >= best]
        named = [v for v in plain if "logit" in v.name]
        if last or named:
            roles["logits"] = (last or named)[0].name
    return roles | dict(given or {}), faults


def _rows_looked_up(value: Value) -> int:
    """Rows of the largest stored table that a value, as it is or reshaped, looks up."""
    rows, todo = 0, [value]
    while todo:
        current = todo.pop()
        for node, index in current.consumers:
            if node.op in ("Gather", "GatherBlockQuantized") and index == 1:
                table = node.inputs[0]
                if table is not None and table.weight is not None and len(table.weight.shape) >= 2:
                    rows = max(rows, table.weight.shape[0])
            elif node.op in _SEE_THROUGH and index == 0:
                todo += [output for output in node.outputs if output is not None]
    return rows
