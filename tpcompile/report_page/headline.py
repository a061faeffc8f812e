"""The head of the page: what is planned for which machine, whether it fits, how long a step takes, what to know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpcompile.plan.step_time import StepTime
from tpcompile.plan.summary import PlanSummary
from tpcompile.plan.words import SPOKEN, bytes_text, calls_text, time_text
from tpcompile.report_page.markup import name, stacked, text

SPENT = {"memory": "memory", "compute": "compute", "starts": "starts", "communication": "communication"}
"""What a step is spent on → how it is told."""
MOST_NOTES = 40


def ranks_text(plan: PlanSummary) -> str:
    return f"{plan.tp} rank{'s' if plan.tp > 1 else ''}"


def headline(plan: PlanSummary) -> str:
    """The figures that decide, each beside one device's."""
    found = plan.estimate
    room = bytes_text(found.topology.device.memory_bytes)
    share = f"{found.rank.weights / found.whole.weights:.0%}" if found.whole.weights else "all"
    sent = [f"{count:,} {SPOKEN.get(op, op)}" for op, count in found.collectives.items() if count]
    verdict = "fits" if found.fits else "does not fit"
    alone = f"one device: {bytes_text(found.whole.total)}"
    if found.whole.total > found.topology.device.memory_bytes:
        alone += ", too much"
    cards = [
        ("Weights a rank", bytes_text(found.rank.weights), f"{share} of {bytes_text(found.whole.weights)}"),
        ("Memory a rank", bytes_text(found.rank.total), f"<b class={verdict[:4]}>{verdict}</b> {room} · {text(alone)}"),
        ("Collectives a step", f"{sum(found.collectives.values()):,}", text(", ".join(sent) or "ranks send nothing")),
        ("A step", time_text(found.step.total), _speed(plan)),
    ]
    shown = "".join(f"<li><h3>{text(title)}</h3><p>{figure}</p><small>{more}</small>" for title, figure, more in cards)
    return f'<p class="lead">{_lead(plan)}</p><ul class="cards">{shown}</ul>'


def _speed(plan: PlanSummary) -> str:
    found = plan.estimate
    if plan.tp == 1:
        return "on one device"
    return f"<b>{found.speedup:.1f} ×</b> as fast as one device, {time_text(found.alone.total)}"


def _lead(plan: PlanSummary) -> str:
    """The plan in a sentence."""
    found = plan.estimate
    if not found.cuts:
        return f"Nothing is cut: {'each of ' if plan.tp > 1 else ''}{ranks_text(plan)} runs the whole model."
    calls, _ = plan.a_layer
    a_layer = f"; {calls_text(calls)} in each of {plan.layers} layers" if calls else ""
    kinds = f"{len(plan.cut)} kind{'s of dimension are' if len(plan.cut) != 1 else ' of dimension is'}"
    even = {"exact": "All ranks hold the same", "uneven": "Ranks hold different amounts"}
    alike = even.get(found.split, "Ranks hold different amounts, and gathers pad the smaller ones")
    return f"{kinds} cut over {ranks_text(plan)}{a_layer}. {alike}."


def facts(plan: PlanSummary) -> str:
    """What the figures hold for."""
    found = plan.estimate
    sizes = ", ".join(f"{symbol} {size}" for symbol, size in found.sizes.items())
    told = [
        ("Model", f"{name(plan.source, 80)} {bytes_text(plan.source_bytes)}"),
        ("Machine", f"{text(found.topology.title)} <small>{text(found.topology.name)}</small>"),
        ("Sizes", text(sizes) or "fixed"),
        ("Planned for", text(plan.objective) + (f", recipe {text(plan.recipe)}" if plan.recipe else "")),
    ]
    return "".join(f"<div><dt>{title}<dd>{what}</div>" for title, what in told)


def step_bars(plan: PlanSummary) -> str:
    """What a step's time is spent on: of the ranks, and of one device."""
    found = plan.estimate
    rows = [(f"{ranks_text(plan)}", found.step)]
    if plan.tp > 1:
        rows.append(("one device", found.alone))
    scale = max(step.total for _, step in rows) or 1.0
    head = "".join(f'<th scope="col"><i class="key {kind}"></i>{text(SPENT[kind])}' for kind in SPENT)
    bars = "".join(
        f'<div class="bar-row"><span>{text(who)}</span><div class="track">{stacked(_parts(step), scale)}</div>'
        f"<b>{time_text(step.total)}</b></div>"
        for who, step in rows
    )
    body = "".join(
        f'<tr><th scope="row">{text(who)}'
        + "".join(f"<td>{time_text(spent)}{_share(spent, step)}" for spent in _parts(step).values())
        for who, step in rows
    )
    return (
        f'<div class="bars" aria-hidden="true">{bars}</div><div class="scroll plain"><table class="figures">'
        f'<caption class="unseen">What a step is spent on</caption><thead><tr><td>{head}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _parts(step: StepTime) -> dict[str, float]:
    return {kind: getattr(step, kind) for kind in SPENT}


def _share(spent: float, step: StepTime) -> str:
    return f" <small>{spent / step.total:.0%}</small>" if step.total and spent else ""


def advice(plan: PlanSummary) -> str:
    """What would be cheaper or does not fit, and what was worth telling."""
    cheaper = (*plan.advice, *plan.cheaper_places)
    return _told("Advice", "advice", cheaper) + _told("Notes", "notes", plan.notes)


def _told(title: str, kind: str, sentences: Sequence[str]) -> str:
    """A box of sentences; none of none."""
    if not sentences:
        return ""

    def items() -> Iterator[str]:
        for sentence in sentences[:MOST_NOTES]:
            yield f"<li>{text(sentence)}"
        if len(sentences) > MOST_NOTES:
            yield f"<li>and {len(sentences) - MOST_NOTES:,} more"

    return f'<div class="told {kind}"><h3>{title}</h3><ul>{"".join(items())}</ul></div>'
