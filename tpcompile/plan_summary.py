"""The summary of a plan as the passes left it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tpcompile.passes.choose_plan import nominal_sizes, symbol_values
from tpcompile.passes.compilation import Compilation
from tpcompile.plan.advice import advice
from tpcompile.plan.estimate import Estimate, estimate
from tpcompile.plan.summarize import Summarizer
from tpcompile.plan.summary import PlanSummary, WeightRow
from tpcompile.plan.weight_rows import weight_rows


def estimate_of(work: Compilation, rows: Sequence[WeightRow] | None = None) -> Estimate:
    """What a plan comes to on its request's topology, at its request's sizes; `rows` where they are known already."""
    values = symbol_values(work)
    rows = weight_rows(work.analysis, work.problem, work.plan) if rows is None else rows
    held = [sum(row.rank_bytes[rank] for row in rows) for rank in range(work.plan.mesh.tp)]
    tokens = next((value for value in work.program.inputs if value.name == work.roles.get("tokens")), None)
    nominal = nominal_sizes(work)
    count = math.prod(nominal(sizes) for sizes in tokens.sizes or ()) if tokens is not None else 1
    shown = {symbol: values[symbol] for symbol in values if not symbol.startswith("#")}
    whole = sum(row.nbytes for row in rows)
    return estimate(work.analysis, work.problem, work.plan, held, whole, work.topology, nominal, shown, count)


def summarize(work: Compilation) -> PlanSummary:
    """What is told of a plan; needs the passes up to the plan, and no weights."""
    nominal = nominal_sizes(work)
    rows = weight_rows(work.analysis, work.problem, work.plan)
    found = estimate_of(work, rows)
    parts = Summarizer(work.analysis, work.problem, work.plan, work.topology, nominal)
    return PlanSummary(
        source=work.source.file,
        source_bytes=work.source.nbytes,
        tp=work.plan.mesh.tp,
        objective=work.plan.objective,
        recipe=work.plan.recipe,
        estimate=found,
        layers=parts.layers,
        ranks=tuple(parts.ranks(rows, found.rank.caches, found.rank.activations)),
        cut=tuple(parts.cut_dimensions()),
        whole=tuple(parts.whole_dimensions()),
        weights=tuple(rows),
        collectives=tuple(parts.collectives()),
        step=tuple(parts.step(rows)),
        advice=tuple(advice(work.analysis, work.problem, work.plan, work.topology, nominal, found, work.wishes)),
        notes=tuple(work.warnings),
    )
