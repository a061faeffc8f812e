"""Name every dimension: find caches and roles, apply the rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from tpcompile.dims.analysis import analyze
from tpcompile.errors import raise_all, refuse
from tpcompile.graph.program import Value
from tpcompile.graph.state import find_roles, find_state, is_cache_name, is_projected
from tpcompile.passes.compilation import Compilation


@dataclass(frozen=True)
class NameDims:
    """Needs shapes; leaves the analysis, the caches, the roles and the inputs and outputs that may stay cut."""

    name: ClassVar[str] = "name dimensions"

    def run(self, work: Compilation) -> str:
        program, request = work.program, work.request
        work.state, faults = find_state(program, request.state)
        work.roles, more = find_roles(program, work.state, request.roles)
        raise_all([*faults, *more])
        ties = []
        for pair in work.state:
            if pair.input.sizes is not None and pair.output.sizes is not None:
                growing = pair.axis if pair.kind == "append" else -1
                ties.append(
                    (pair.input, pair.output, [axis for axis in range(len(pair.input.sizes)) if axis != growing])
                )
        for stored, made in program.written:
            if stored.sizes is not None and made.sizes is not None:
                ties.append((stored, made, [*range(len(stored.sizes))]))
        work.analysis = analyze(program, ties)
        paired = {value for pair in work.state for value in (pair.input, pair.output)}
        alone = {value for value in (*program.inputs, *program.outputs) if value not in paired and _may_be_cut(value)}
        alone |= {made for _, made in program.written}
        shards = set(program.outputs) - set(program.inputs) if request.outputs == "shard" else set()
        work.cut_doors = frozenset(paired | alone | shards)
        if request.strict and work.analysis.uncovered:
            forms = sorted({f"{node.op} ({reason})" for node, reason in work.analysis.uncovered.items()})
            raise refuse(
                "TP301",
                work.source.file,
                f"{_nodes(len(work.analysis.uncovered), 'has no rule and runs', 'have no rule and run')} whole: "
                f"{', '.join(forms[:5])}",
                "Leave out --strict to run them whole on every rank",
            )
        whole = Counter(node.op for node in work.analysis.uncovered)
        if whole:
            found = ", ".join(f"{count} {op}" for op, count in whole.most_common(6))
            others = f" and {len(whole) - 6} kinds more" if len(whole) > 6 else ""
            ran = _nodes(sum(whole.values()), "runs", "run")
            work.warnings.append(f"{ran} whole on every rank, for want of a rule: {found}{others}")
        return f"{len(work.analysis.relations)} nodes related, {len(work.state)} caches"


def _nodes(count: int, one: str, several: str) -> str:
    return f"1 node {one}" if count == 1 else f"{count} nodes {several}"


def _may_be_cut(value: Value) -> bool:
    """Caches that only come in (encoder keys and values) or only go out (a prefill graph's): by name, and rank."""
    return (
        is_cache_name(value.name)
        and not is_projected(value)
        and len(value.sizes or ()) >= 3
        and (value.dtype or "").startswith(("float", "bfloat", "uint8", "int8"))
    )
