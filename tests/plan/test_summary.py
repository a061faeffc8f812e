"""The summary of a plan: its figures add up, its layers are those of the model, its advice is true."""

from __future__ import annotations

from pathlib import Path

import pytest

import tpcompile
from tests.plan.models import TWO_LAYERS, model
from tests.plan.test_topology import OWN
from tpcompile.plan.summary import PlanSummary
from tpcompile.plan_summary import summarize

WIDE = TWO_LAYERS.replace("36", "3600").replace("50", "9000")
NODES = ("Gather", "MatMul", "Add", "Relu", "MatMul", "Add", "MatMul", "Add", "Relu", "MatMul", "Add", "MatMul")
SENT_LATE = """(float[batch, 12] x) => (float[batch, 30] y, double[batch, 30] z)
<float[12, 30] w, float[30, 12] v, float[12, 30] u>
{ a = MatMul(x, w) y = Relu(a) c = MatMul(y, v) b = Relu(c) d = MatMul(b, u) z = Cast<to = 11>(d) }"""


@pytest.fixture
def boards(tmp_path: Path) -> str:
    path = tmp_path / "boards.toml"
    path.write_text(OWN)
    return str(path)


@pytest.fixture
def told(boards: str) -> PlanSummary:
    return summarize(tpcompile.plan(model(WIDE), 2, topology=boards, sizes={"batch": 3, "seq": 5}))


def test_the_parts_of_a_step_are_the_step(told: PlanSummary) -> None:
    step = told.estimate.step
    last = told.step[-1]
    assert last.start_us + last.us == pytest.approx(step.total)
    sent = sum(entry.us for entry in told.step if entry.kind == "communication")
    assert sent == pytest.approx(step.communication)
    assert sent == pytest.approx(sum(row.us * row.runs for row in told.collectives))
    for before, entry in zip(told.step, told.step[1:], strict=False):
        assert entry.start_us == pytest.approx(before.start_us + before.us)


def test_weights_add_up_to_what_ranks_hold(told: PlanSummary) -> None:
    assert [rank.weights for rank in told.ranks] == [sum(row.rank_bytes[k] for row in told.weights) for k in range(2)]
    rows = {row.name: row for row in told.weights}
    assert (rows["up1"].how, rows["up1"].shape, rows["up1"].local_shape) == ("column", (16, 3600), (16, 1800))
    assert (rows["down0"].how, rows["down0"].local_shape) == ("row", (1800, 16))
    assert (rows["table"].how, rows["table"].local_shape) == ("vocab", (4500, 16))
    assert rows["head"].rank_bytes == (16 * 4500 * 4,) * 2
    assert rows["down0"].dimensions == ("up0[1]",)


def test_what_a_cut_takes_off_a_rank_is_the_time_without_it(told: PlanSummary, boards: str) -> None:
    """With `up` whole instead, memory and compute of a step grow by what the summary says, collectives fall by it."""
    (up,) = (found for found in told.cut if found.name == "up0[1]")
    sizes = {"batch": 3, "seq": 5}
    pins = [(name, "whole") for name in ("up0", "up1", "down0", "down1", "bias0", "bias1")]
    other = summarize(tpcompile.plan(model(WIDE), 2, topology=boards, sizes=sizes, pins=pins)).estimate.step
    mine = told.estimate.step
    assert other.memory + other.compute - mine.memory - mine.compute == pytest.approx(up.saved_us)
    assert mine.communication - other.communication == pytest.approx(up.collectives_us)
    assert (up.how, up.count, up.blocks, dict(up.collectives)) == ("column", 2, (1800, 1800), {"all_reduce": 2})


def test_layers_are_found_by_what_is_alike(told: PlanSummary) -> None:
    """x0 comes before the layers; each ends with its residual sum; the head comes after."""
    assert told.layers == 2
    nodes = [(entry.op, entry.layer) for entry in told.step if entry.kind != "communication"]
    assert tuple(op for op, _ in nodes) == NODES
    assert [layer for _, layer in nodes] == [-1, *[0] * 5, *[1] * 5, 2]
    assert [row.layer for row in told.collectives] == [-1, 0, 1, 2]


def test_entries_say_what_they_compute_and_read(told: PlanSummary) -> None:
    by_weight = {entry.weights[0]: entry for entry in told.step if entry.weights}
    assert [by_weight[name].cut for name in ("table", "up0", "down0", "head")] == ["vocab", "column", "row", "column"]
    relu = next(entry for entry in told.step if entry.op == "Relu")
    assert relu.cut == "cut"
    assert [told.step[k].op for k in relu.reads] == ["Add"]
    residual = next(entry for entry in told.step if entry.op == "Add" and not entry.weights)
    assert (residual.cut, [told.step[k].op for k in residual.reads]) == ("whole", ["all_reduce", "all_reduce"])


def test_a_collective_behind_a_widening_would_send_less_before_it() -> None:
    """z is float64: gathered before the Cast it would be half as long. y is read cut, and an output all the same."""
    told = summarize(tpcompile.plan(model(SENT_LATE), 2, sizes={"batch": 7}, pins={"w": "column", "u": "column"}))
    cheaper = {row.value: row.cheaper for row in told.collectives}
    assert cheaper == {
        "c": "",
        "y": "",
        "z": "before Cast Cast_1 it would send 840 B instead of 1.7 kB",
    }


def test_advice_is_what_another_plan_comes_to(boards: str) -> None:
    """Two AllReduces of 18 µs for reading 5 kB less: whole is faster, and how much is what that plan comes to."""
    told = summarize(tpcompile.plan(model(TWO_LAYERS), 2, topology=boards))
    other = summarize(tpcompile.plan(model(TWO_LAYERS), 2, topology=boards, objective="latency"))
    assert other.advice == ()
    assert told.advice == (
        "--objective latency would take 18 µs a step instead of 86 µs: it leaves the whole model uncut",
    )
    assert (round(told.estimate.step.total, 1), round(other.estimate.step.total, 1)) == (86.1, 18.2)


def test_advice_names_what_does_not_fit_and_links_that_are_crossed(tmp_path: Path) -> None:
    small = tmp_path / "small.toml"
    small.write_text(OWN.replace("memory_gb = 16", "memory_gb = 0.0001"))
    told = summarize(tpcompile.plan(model(WIDE), 4, topology=str(small), objective="latency"))
    assert told.advice[0].startswith("a rank holds ") and "at least 22 ranks, smaller --sizes" in told.advice[0]
    wide = summarize(tpcompile.plan(model(WIDE), 4, topology=str(small)))
    assert wide.advice[-1].startswith("4 ranks span boxes of 2: an AllReduce of ")
    assert wide.advice[-2] == "two boards has 2 ranks, not 4: times take its outermost links to repeat"


def test_a_norm_belongs_to_the_layer_it_prepares_and_the_residual_sum_to_the_one_it_ends() -> None:
    """As exporters decompose it: the norm's division meets its own input, the residual sum what came before."""
    layer = """ p{k} = Mul(x{k}, x{k})  m{k} = ReduceMean<axes = [-1]>(p{k})  r{k} = Sqrt(m{k})  n{k} = Div(x{k}, r{k})
    a{k} = MatMul(n{k}, up{k})  b{k} = Relu(a{k})  c{k} = Mul(a{k}, b{k})  d{k} = MatMul(c{k}, down{k})
    e{k} = Mul(d{k}, half)  x{j} = Add(x{k}, e{k})"""
    weights = ", ".join(f"float[16, 360] up{k}, float[360, 16] down{k}" for k in range(3))
    layers = "\n".join(layer.format(k=k, j=k + 1) for k in range(3))
    text = f"(float[batch, 16] x0) => (float[batch, 16] x3) <{weights}, float half = {{0.5}}> {{ {layers} }}"
    told = summarize(tpcompile.plan(model(text, opset=17), 2))
    nodes = [entry for entry in told.step if entry.kind != "communication"]
    assert told.layers == 3
    assert [(entry.op, entry.layer) for entry in nodes[10:20]] == [
        (op, 1) for op in ("Mul", "ReduceMean", "Sqrt", "Div", "MatMul", "Relu", "Mul", "MatMul", "Mul", "Add")
    ]


def test_a_norm_with_a_weight_within_the_last_layer_is_not_behind_it() -> None:
    """The head is; the last feed-forward's norm has a weight of the residual width, as all norms and the head have."""
    layer = """ s{k} = LayerNormalization(x{k}, g{k})  a{k} = MatMul(s{k}, up{k})  b{k} = Relu(a{k})
    d{k} = MatMul(b{k}, down{k})  y{k} = Add(x{k}, d{k})
    t{k} = LayerNormalization(y{k}, h{k})  u{k} = MatMul(t{k}, in{k})  v{k} = Tanh(u{k})
    w{k} = MatMul(v{k}, out{k})  x{j} = Add(y{k}, w{k})"""
    weights = ", ".join(
        f"float[16] g{k}, float[16] h{k}, float[16, 360] up{k}, float[360, 16] down{k}, float[16, 480] in{k}, "
        f"float[480, 16] out{k}"
        for k in range(2)
    )
    layers = "\n".join(layer.format(k=k, j=k + 1) for k in range(2))
    text = f"""(float[batch, 16] x0) => (float[batch, 900] z) <{weights}, float[16] last, float[16, 900] head>
    {{ {layers} n = LayerNormalization(x2, last) z = MatMul(n, head) }}"""
    told = summarize(tpcompile.plan(model(text), 2))
    nodes = [(entry.op, entry.layer) for entry in told.step if entry.kind != "communication"]
    assert [layer for _, layer in nodes] == [-1, *[0] * 9, *[1] * 10, 2, 2]
    assert nodes[0][0] == nodes[10][0] == "LayerNormalization"


def test_a_branch_that_half_of_the_runs_take_counts_half_everywhere(boards: str) -> None:
    """Weights, starts and the AllReduce of a branch: the time line ends where the estimate does."""
    text = """(float[batch, 64] x, bool up) => (float[batch, 64] y) <float[64, 4000] a, float[4000, 64] b> {
     y = If(up) <then_branch = one () => (float[n, 64] p) { h = MatMul(x, a) r = Relu(h) p = MatMul(r, b) },
                 else_branch = other () => (float[n, 64] q) { q = Relu(x) }>
    }"""
    told = summarize(tpcompile.plan(model(text), 2, topology=boards, sizes={"batch": 5}))
    step, last = told.estimate.step, told.step[-1]
    assert step.starts == pytest.approx(1.5 * (4 / 2 + 1))  # and the If itself
    assert step.communication == pytest.approx(18.1024 / 2)
    assert last.start_us + last.us == pytest.approx(step.total)
