"""What a plan comes to: memory, collectives and time of a small model, by hand, and how degrees compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

import tpcompile
from tests.plan.models import model
from tests.plan.test_topology import OWN
from tpcompile.cli import main
from tpcompile.errors import Refused
from tpcompile.pipeline import replanned
from tpcompile.plan.estimate import Estimate, stops_paying
from tpcompile.plan.planfile import plan_toml
from tpcompile.plan.step_time import StepTime
from tpcompile.plan_report import plan_json
from tpcompile.plan_summary import estimate_of, summarize

MLP = """(float[batch, 64] x) => (float[batch, 64] y)
<float[64, 4000] up, float[4000, 64] down>
{ a = MatMul(x, up)  b = Relu(a)  y = MatMul(b, down) }"""


@pytest.fixture
def boards(tmp_path: Path) -> str:
    """100 GB/s, 2 TFLOP/s, 1.5 µs a start; two of them, 12.5 GB/s each way, 10 µs a collective and 4 µs a hop."""
    path = tmp_path / "boards.toml"
    path.write_text(OWN)
    return str(path)


def test_a_step_by_hand(boards: str) -> None:
    found = estimate_of(tpcompile.plan(model(MLP), 2, sizes={"batch": 5}, topology=boards))
    # up and down: 64·4000 floats each, half of them on a rank
    assert found.rank.weights == 2 * 64 * 4000 * 4 / 2
    assert found.whole.weights == 2 * 64 * 4000 * 4
    assert found.rank.activations == 2 * 5 * 2000 * 4  # a and b; x is not needed any more, y not yet there
    assert found.collectives == {"all_reduce": 1, "all_gather": 0}
    # products read x, half of the weights, and write: bound by memory at 100 kB a µs
    up = (5 * 64 + 64 * 2000 + 5 * 2000) * 4 / 1e5
    relu = 2 * 5 * 2000 * 4 / 1e5
    down = (5 * 2000 + 2000 * 64 + 5 * 64) * 4 / 1e5
    assert found.step.memory == pytest.approx(up + relu + down)
    assert found.step.compute == 0
    assert found.step.starts == 3 * 1.5
    # one AllReduce of 5·64 floats on two ranks: 10 + 2·4 + 1280/12500
    assert found.step.communication == pytest.approx(18.1024)
    assert found.alone.communication == 0
    assert found.speedup == pytest.approx(found.alone.total / found.step.total)


def test_many_rows_are_bound_by_arithmetic(boards: str) -> None:
    found = estimate_of(tpcompile.plan(model(MLP), 2, sizes={"batch": 5000}, topology=boards))
    assert found.step.compute == pytest.approx(2 * 2 * 5000 * 64 * 2000 / 2e6)


def test_where_things_are_fused_only_products_count(boards: str, tmp_path: Path) -> None:
    fused = tmp_path / "fused.toml"
    fused.write_text(OWN.replace("fuses = false", "fuses = true"))
    found = estimate_of(tpcompile.plan(model(MLP), 2, sizes={"batch": 5}, topology=str(fused)))
    assert found.step.starts == 2 * 1.5


def test_latency_leaves_whole_what_does_not_pay_and_cuts_what_does(boards: str) -> None:
    """The AllReduce costs 18 µs; half of 2 MB of weights is read in 10 µs, half of 20 MB in 100."""
    small = tpcompile.plan(model(MLP), 2, objective="latency", topology=boards)
    assert not small.plan.cuts_something
    assert small.warnings == ["cutting anything costs more than it saves: every rank runs the whole model"]
    large = tpcompile.plan(model(MLP.replace("4000", "40000")), 2, objective="latency", topology=boards)
    assert [group.size for group in large.plan.groups if group.axes] == [40000]
    assert estimate_of(large).speedup > 1


def test_latency_looks_at_what_is_computed_not_only_read(boards: str) -> None:
    """A thousand rows take 1 ms of arithmetic: half of it is worth an AllReduce that reading alone is not."""
    many = tpcompile.plan(model(MLP), 2, objective="latency", topology=boards, sizes={"batch": 1000})
    assert many.plan.cuts_something


def test_a_limit_of_memory_is_kept_or_refused(boards: str) -> None:
    weights = 2 * 64 * 4000 * 4
    free = tpcompile.plan(model(MLP), 2, objective="latency", topology=boards)
    assert estimate_of(free).rank.total > weights
    tight = tpcompile.plan(model(MLP), 2, objective="latency", topology=boards, memory_per_rank=weights * 3 // 4)
    assert estimate_of(tight).rank.total <= weights * 3 // 4
    with pytest.raises(Refused) as refusal:
        tpcompile.plan(model(MLP), 2, memory_per_rank=weights // 3)
    assert str(refusal.value) == (
        "TP132 --memory-per-rank 683 kB: weights and caches take 1.0 MB on the fullest of 2 ranks, however they are "
        "cut. Use more ranks, smaller --sizes (past, batch), or ranks with more memory"
    )


def test_uneven_degrees_are_told_apart() -> None:
    splits = {tp: estimate_of(tpcompile.plan(model(MLP.replace("4000", "4002")), tp)).split for tp in (2, 3, 4)}
    assert splits == {2: "exact", 3: "exact", 4: "uneven"}


def test_where_more_ranks_stop_paying(boards: str) -> None:
    base = estimate_of(tpcompile.plan(model(MLP), 2, topology=boards))

    def at(tp: int, total: float) -> Estimate:
        return replace(
            base, tp=tp, alone=StepTime(memory=100), step=StepTime(memory=total / 2, communication=total / 2)
        )

    assert stops_paying([at(1, 100), at(2, 60), at(4, 40)]) is None
    assert stops_paying([at(1, 100), at(2, 60), at(4, 40), at(8, 38)]) == (
        "more than 4 ranks do not pay here: 8 are 1.05 times as fast as 4, and 50% of their time is communication"
    )


def test_the_command_compares_degrees(tmp_path: Path, boards: str, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model(MLP), tmp_path / "mlp.onnx")
    assert main(["plan", str(tmp_path / "mlp.onnx"), "--tp", "1,2,4", "--topology", boards]) == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines() if line]
    begin = next(k for k, row in enumerate(rows) if row[0] == "ranks")
    assert [row[0] for row in rows[begin : begin + 4]] == ["ranks", "1", "2", "4"]
    assert "2 ranks are all that this machine has" in shown


def test_degrees_that_share_an_analysis_get_the_plans_they_get_alone(boards: str) -> None:
    """Notes of one plan are not those of the next."""
    wishes: dict[str, Any] = {"topology": boards, "pins": {"up": "column"}, "sizes": {"batch": 3}}
    first = tpcompile.plan(model(MLP), 1, **wishes)
    for tp in (2, 3, 4):
        alone, again = tpcompile.plan(model(MLP), tp, **wishes), replanned(first, tp)
        assert plan_toml(again.plan, summarize(again)) == plan_toml(alone.plan, summarize(alone))
        assert again.warnings == alone.warnings
        assert plan_json(summarize(again), again) == plan_json(summarize(alone), alone)


def test_what_is_no_list_of_degrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "m.onnx", "--tp", "1,two"]) == 2
    assert capsys.readouterr().err == (
        "TP100 tpcompile plan: argument --tp: '1,two' is no list of numbers of ranks, such as 1,2,4. "
        "Run `tpcompile plan --help`\n"
    )


def test_machines_get_the_same_numbers(boards: str) -> None:
    work = tpcompile.plan(model(MLP), 2, sizes={"batch": 5}, topology=boards)
    told, found = plan_json(summarize(work), work)["estimate"], estimate_of(work)
    assert told["step_us"]["total"] == round(found.step.total, 2)
    assert told["rank_bytes"]["weights"] == found.rank.weights
    assert (told["topology"], told["sizes"], told["fits"], told["split"]) == ("boards", {"batch": 5}, True, "exact")


@pytest.mark.parametrize(
    ("text", "nbytes"), [("24GB", 24 * 10**9), ("1.5 GiB", 3 * 2**29), ("300", 300), ("7mb", 7 * 10**6)]
)
def test_amounts_of_memory(text: str, nbytes: int) -> None:
    from tpcompile.plan.request import read_bytes

    assert read_bytes("--memory-per-rank", text) == nbytes


def test_no_amount_of_memory() -> None:
    from tpcompile.plan.request import read_bytes

    with pytest.raises(Refused) as refusal:
        read_bytes("--memory-per-rank", "much")
    assert str(refusal.value) == (
        "TP100 --memory-per-rank much: it is no amount of memory. Write --memory-per-rank 24GB"
    )
