"""The tables of the page: dimensions, weights, collectives. Each says what is left out of it."""

from __future__ import annotations

from tpcompile.plan.summary import CollectiveRow, CutDimension, PlanSummary, WeightRow, WholeDimension
from tpcompile.plan.words import SPOKEN, bytes_text, parts_text, time_text
from tpcompile.report_page.layers import FEW, constants
from tpcompile.report_page.markup import (
    HOW,
    Cell,
    Column,
    Row,
    badge,
    name,
    names,
    operation,
    shorter,
    table,
    text,
    times,
)

MOST_DIMENSIONS = 400
MOST_WEIGHTS = 2000
MOST_COLLECTIVES = 600


def cut_dimensions(plan: PlanSummary) -> str:
    """What is cut, what that saves and causes."""
    columns = (
        Column("name", "dimension"), Column("how", "cut by"), Column("size", "size", number=True),
        Column("parts", "parts", number=True), Column("stored", "holds", number=True),
        Column("saved", "bytes saved", number=True), Column("time", "time saved", number=True),
        Column("causes", "causes"), Column("sent", "time of these", number=True),
    )  # fmt: skip
    shown = plan.cut[:MOST_DIMENSIONS]
    left = _left(len(plan.cut) - len(shown), "more dimensions")
    empty = "" if shown else "<p>Nothing is cut."
    return empty + table("cut", "Dimensions that are cut", columns, map(_cut, shown), [d.how for d in shown]) + left


def _cut(found: CutDimension) -> Row:
    causes = [f"{count:,} {SPOKEN.get(op, op)}" for op, count in found.collectives.items() if count]
    return (
        f"{name(found.name)}{times(found.count)}<br><small>read by {name(found.node, 60)}</small>",
        badge(found.how), Cell(f"{found.size:,}", found.size), Cell(parts_text(found.blocks), found.degree),
        Cell(bytes_text(found.stored_bytes), found.stored_bytes),
        Cell(bytes_text(found.saved_bytes), found.saved_bytes),
        Cell(time_text(found.saved_us), found.saved_us),
        f"<span class=shape>{text(', '.join(causes)) or 'nothing'}</span>",
        Cell(time_text(found.collectives_us) if found.collectives_us else "—", found.collectives_us),
    )  # fmt: skip


def whole_dimensions(plan: PlanSummary) -> str:
    """What stays whole, why, and what would change it."""
    columns = (
        Column("name", "dimension"), Column("size", "size", number=True), Column("stored", "holds", number=True),
        Column("why", "why it is whole"), Column("remedy", "what would change that"),
    )  # fmt: skip
    shown = plan.whole[:MOST_DIMENSIONS]
    left = _left(len(plan.whole) - len(shown), "more dimensions")
    empty = "" if shown else "<p>All that weights hold is cut."
    return empty + table("whole", "Dimensions that stay whole", columns, map(_whole, shown)) + left


def _whole(found: WholeDimension) -> Row:
    return (
        f"{name(found.name)}{times(found.count)}", Cell(f"{found.size:,}", found.size),
        Cell(bytes_text(found.stored_bytes), found.stored_bytes), text(found.reason), text(found.remedy) or "—",
    )  # fmt: skip


def weights(plan: PlanSummary) -> str:
    """Every stored tensor, on all ranks, the largest first; of very many only these."""
    columns = (
        Column("name", "weight"), Column("type", "type"), Column("shape", "in the model"),
        Column("local", "on a rank"), Column("bytes", "bytes", number=True), Column("held", "a rank's", number=True),
        Column("how", "lies"), Column("why", "cut along, or why whole"),
    )  # fmt: skip
    few = constants(plan)
    rows = sorted((row for row in plan.weights if row.name not in few), key=lambda row: -row.nbytes)
    shown, rest = rows[:MOST_WEIGHTS], sum(row.nbytes for row in rows[MOST_WEIGHTS:])
    left = _left(len(few), f"stored tensors of at most {FEW} elements")
    left += _left(len(rows) - len(shown), f"weights, {bytes_text(rest)} together")
    return table("weights", "Weights", columns, map(_weight, shown), [row.how for row in shown]) + left


def how_weights_lie(plan: PlanSummary) -> str:
    """The choices of the filter."""
    few = constants(plan)
    found = {row.how for row in plan.weights if row.name not in few}
    return '<option value="">in any way' + "".join(f'<option value="{how}">{HOW[how]}' for how in HOW if how in found)


def _weight(row: WeightRow) -> Row:
    low, high = min(row.rank_bytes, default=0), max(row.rank_bytes, default=0)
    held = bytes_text(high) if bytes_text(low) == bytes_text(high) else f"{bytes_text(low)} to {bytes_text(high)}"
    remedy = f"<br><small>→ {text(row.remedy)}</small>" if row.remedy else ""
    why = names(row.dimensions) if row.dimensions else text(row.reason) + remedy
    return (
        name(row.name), text(shorter(row.dtype, 24)), _shape(row.shape), _shape(row.local_shape),
        Cell(bytes_text(row.nbytes), row.nbytes), Cell(held, high), badge(row.how), why,
    )  # fmt: skip


def _shape(sizes: tuple[int, ...]) -> Cell:
    return Cell(f"<span class=shape>{' × '.join(map(str, sizes)) or 'scalar'}</span>")


def collectives(plan: PlanSummary) -> str:
    """What ranks send in a step, in order."""
    columns = (
        Column("place", "no.", number=True), Column("op", "collective"), Column("value", "of"),
        Column("layer", "layer", number=True), Column("bytes", "result", number=True),
        Column("us", "takes", number=True), Column("algorithm", "by"), Column("because", "because of the cut of"),
        Column("cheaper", "cheaper elsewhere"),
    )  # fmt: skip
    shown = plan.collectives[:MOST_COLLECTIVES]
    left = _left(len(plan.collectives) - len(shown), "more collectives")
    rows = (_collective(place, row, plan.layers) for place, row in enumerate(shown))
    empty = "" if shown else "<p>Ranks send nothing."
    return empty + table("collectives", "Collectives of a step", columns, rows) + left


def _collective(place: int, row: CollectiveRow, layers: int) -> Row:
    where = "before" if row.layer < 0 else "after" if row.layer >= layers else str(row.layer)
    runs = f" <small>{row.runs:.2g} times a step</small>" if row.runs != 1 else ""
    return (
        Cell(str(place), place), f'<span class="badge communication"><i></i>{operation(row.op)}</span>{runs}',
        name(row.value), Cell(where, row.layer), Cell(bytes_text(row.nbytes), row.nbytes),
        Cell(time_text(row.us), row.us), text(row.algorithm), names(row.dimensions), text(row.cheaper) or "—",
    )  # fmt: skip


def _left(count: int, what: str) -> str:
    return f'<p class="left"><small>Left out: {count:,} {what}</small>' if count > 0 else ""
