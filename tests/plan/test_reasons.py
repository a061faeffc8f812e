"""Every reason for what stays whole, with its remedy; and that a remedy, followed, changes what it says."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

import tpcompile
from tests.plan.models import MIXED, TWO_LAYERS, attention, model
from tests.plan.test_plan_file import SHARED
from tests.randomly.graphs import RandomGraph
from tpcompile.plan.explain import cannot_be_cut
from tpcompile.plan.plan import PlannedGroup, Reason

SOURCES = {
    "two layers": model(TWO_LAYERS),
    "heads": attention(6, 2),
    "uneven": attention(5, 5),
    "shared": model(SHARED),
    **{f"random {seed}": RandomGraph(seed, 18).model for seed in (2, 3, 7)},
}


def left_whole(source: onnx.ModelProto, tp: int, **wishes: object) -> list[PlannedGroup]:
    plan = tpcompile.plan(source, tp, **wishes).plan  # type: ignore[arg-type]
    return [group for group in plan.groups if not group.axes]


@pytest.mark.parametrize("objective", ["balanced", "latency"])
@pytest.mark.parametrize("tp", [3, 4])
@pytest.mark.parametrize("name", SOURCES)
def test_a_remedy_changes_what_it_says(name: str, tp: int, objective: str, tmp_path: Path) -> None:
    source, path = SOURCES[name], tmp_path / "plan.toml"
    for group in left_whole(source, tp, objective=objective):
        pin = re.fullmatch(r"--pin '(.*)=cut' forces it", group.remedy)
        edit = re.fullmatch(r"sub_axes = (\[.*\]) in plan.toml forces it(; --tp (\d+) or less fits it)?", group.remedy)
        fewer = re.match(r"--tp (\d+) or less", group.remedy)
        if pin:
            plan = tpcompile.plan(source, tp, objective=objective, pins={pin[1]: "cut"}).plan
            assert next(found for found in plan.groups if found.name == group.name).degree == tp
        elif edit:
            entry = f'[[dimension]]\nname = "{group.name}"\nsub_axes = {edit[1]}\n'
            path.write_text(f'format = 1\ntp = {tp}\nobjective = "balanced"\n{entry}')
            plan = tpcompile.plan(source, tp, plan=path).plan
            assert str(list(next(found for found in plan.groups if found.name == group.name).axes)) == edit[1]
        ranks = edit[3] if edit and edit[3] else fewer[1] if fewer else None
        if ranks and not group.name.endswith(("#1", "#2")):
            plan = tpcompile.plan(source, int(ranks), pins={group.name: "cut"}).plan
            assert next(found for found in plan.groups if found.name == group.name).degree == int(ranks)


def whole(source: str, tp: int, **wishes: object) -> dict[str, tuple[str, str]]:
    return {group.name: (group.reason, group.remedy) for group in left_whole(model(source), tp, **wishes)}


def test_what_a_wish_keeps_whole() -> None:
    found = whole(TWO_LAYERS, 4, pins={"head[1]": "whole"}, forbids={"table[0]": ""})
    assert found["head[1]"] == ("pin 'head[1]=whole'", "Leave out the pin")
    assert found["table[0]"] == ("forbid 'table[0]'", "Leave out the forbid")


def test_what_costs_more_cut() -> None:
    name, price = "table[1]", "cutting it would cost 1.7 kB of reading more a step, with up0[1] whole in its place"
    assert whole(TWO_LAYERS, 4)[name] == (price, f"--pin '{name}=cut' forces it")


def test_what_pins_leave_no_room_for() -> None:
    found = whole(TWO_LAYERS, 4, pins={"up0": "column", "down1": "row"})
    assert found["table[1]"] == (
        "the pins leave no room for it", "Leave one out: tpcompile plan --why 'table[1]' says which")  # fmt: skip


def test_what_has_too_few_parts() -> None:
    assert whole("(float[b, 2] x) => (float[b, 60] y) <float[2, 60] w> { y = MatMul(x, w) }", 3)["w[0]"] == (
        "2 parts are too few for 3 ranks", "--tp 2 or less, or an even number of ranks")  # fmt: skip


def test_what_is_mixed_with_sizes_that_depend_on_inputs() -> None:
    assert ("x2 is read in parts but mixes it with sizes that depend on inputs",
            "An export with fixed sizes, or one that keeps it apart from them") in whole(MIXED, 2).values()  # fmt: skip


def test_what_meets_itself() -> None:
    problem = tpcompile.plan(model(TWO_LAYERS), 2).problem
    problem.exclusive.add((0, 0))
    assert cannot_be_cut(problem, 0) == Reason("two such dimensions meet in one product")
