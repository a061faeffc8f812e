"""Kinds of faults that other models than the families showed: each by the smallest module that has it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'tpcompile[torch]'")

from tests.torch_fx.lockstep import Ranks  # noqa: E402
from tpcompile.errors import Refused  # noqa: E402
from tpcompile.torch import load, parallelize  # noqa: E402
from tpcompile.weights.ranges import Part  # noqa: E402

functional = torch.nn.functional
WIDTH, INNER = 20, 84


class Mlp(torch.nn.Module):  # type: ignore[misc]
    """Two products with biases; what lies between them is told by `body`."""

    def __init__(self, body: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.up, self.down = torch.nn.Linear(WIDTH, INNER), torch.nn.Linear(INNER, WIDTH)
        self.register_buffer("seen", torch.randn(WIDTH))
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(self, x)


X = torch.linspace(-2, 2, 2 * 3 * WIDTH).reshape(2, 3, WIDTH) ** 3


def part_of(whole: Any, part: Part) -> Any:
    for axis, ranges in enumerate(part.axes):
        if ranges is not None:
            whole = torch.cat([whole.narrow(axis, first, last - first) for first, last in ranges], axis)
    return whole


def weighed(out: Any) -> Any:
    return (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)).sum()


def assert_trains_alike(model: Any, tp: int, *args: Any, rtol: float = 1e-4) -> Any:
    """Output, gradients and buffers after two steps are those of one device."""
    made = parallelize(copy.deepcopy(model).train(), args, tp=tp)
    ranks, mine = Ranks(tp), [made.rank_program(rank).module() for rank in range(tp)]
    whole = copy.deepcopy(model).train()

    def step(rank: int) -> Any:
        out = ranks.module(mine[rank], rank)(*args)
        weighed(out).backward()
        return out

    for _ in range(2):
        want = whole(*args)
        weighed(want).backward()
        for got in ranks.run(step):
            torch.testing.assert_close(got, want, rtol=rtol, atol=1e-4)
    for rank, module in enumerate(mine):
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        for name, parameter in whole.named_parameters():
            part = next(w for w in made.work.local.weights if w.weight.name == name).parts[rank]
            gradient = part_of(parameter.grad, part)
            near = max(rtol * float(parameter.grad.abs().max()), 1e-5)
            torch.testing.assert_close(parameters[name].grad, gradient, rtol=rtol, atol=near)
        for name, buffer in whole.named_buffers():
            if name in buffers:
                part = next(w for w in made.work.local.weights if w.weight.name == name).parts[rank]
                torch.testing.assert_close(buffers[name], part_of(buffer, part), rtol=rtol, atol=1e-4)
    return made


# -- regions ---------------------------------------------------------


def _scaled_without_gradients(m: Any, x: Any) -> Any:
    with torch.no_grad():
        scale = m.up(x).mean(-1, keepdim=True).exp()
        with torch.enable_grad():
            through = m.down.bias * scale
    return m.down(functional.gelu(m.up(x) * scale)) + through


def _remembers_without_gradients(m: Any, x: Any) -> Any:
    y = m.down(functional.gelu(m.up(x)))
    with torch.no_grad():
        m.seen.mul_(0.5).add_(y.mean((0, 1)))
    return y * m.seen


@pytest.mark.parametrize("body", [_scaled_without_gradients, _remembers_without_gradients])
def test_what_is_computed_without_gradients_has_none(body: Any) -> None:
    made = assert_trains_alike(Mlp(body), 3, X)
    assert made.rank_program(0).state_dict["up.weight"].shape == (INNER // 3, WIDTH)


def _cast(m: Any, x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = functional.softmax(m.up(x), -1)
        with torch.autocast("cpu", enabled=False):
            h = h * m.down.weight.sum(0)
        return m.down(h).float()


def test_automatic_casts_are_operators() -> None:
    made = assert_trains_alike(Mlp(_cast), 2, X, rtol=2e-2)
    types = {node.meta["val"].dtype for node in made.rank_program(0).graph.nodes if "linear" in str(node.target)}
    assert types == {torch.bfloat16}


def _branches(m: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: m.down(m.up(x)), lambda x: x * 2, (x,))


def test_a_branch_on_a_tensor_is_refused() -> None:
    with pytest.raises(Refused) as told:
        parallelize(Mlp(_branches).eval(), (X,), tp=2)
    assert str(told.value) == (
        "TP726 node cond: 'torch.ops.higher_order.cond' runs a part of the graph. "
        "Write it without branches, loops and maps over tensors, or export each part by itself"
    )


# -- stored tensors --------------------------------------------------


class Normed(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.norm, self.last = torch.nn.Linear(20, 24), torch.nn.BatchNorm1d(24), torch.nn.Linear(24, 12)

    def forward(self, x: Any) -> Any:
        return self.last(functional.relu(self.norm(self.first(x))))


def test_running_statistics_are_written_after_the_backward_pass_has_read_them() -> None:
    assert_trains_alike(Normed(), 2, X.reshape(6, 20))


def test_constants_that_join_uneven_parts_are_saved_and_loaded(tmp_path: Path) -> None:
    class Head(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(WIDTH, 100)

        def forward(self, x: Any) -> Any:
            return self.head(x)

    model = Head().eval()
    made = parallelize(model, (X,), dynamic=({0: "batch", 1: "seq"},), tp=3)
    assert made.rank_program(0).state_dict["head.weight"].shape == (34, WIDTH)
    made.save(tmp_path / "bundle")
    ranks, mine = Ranks(3), [load(tmp_path / "bundle", rank).module() for rank in range(3)]
    for got in ranks.run(lambda rank: ranks.module(mine[rank], rank)(X)):
        torch.testing.assert_close(got, model(X))


def _written_in_part(m: Any, x: Any) -> Any:
    h = m.up(x)
    kept = torch.zeros_like(h)
    kept[:, 1:] = functional.silu(h[:, 1:])
    return m.down(kept)


@pytest.mark.parametrize("tp", [2, 3])
def test_what_is_written_into_a_part_of_a_tensor_has_a_gradient(tp: int) -> None:
    made = assert_trains_alike(Mlp(_written_in_part), tp, X)
    assert made.rank_program(0).state_dict["up.weight"].shape == (INNER // tp, WIDTH)


class ComplexRotary(torch.nn.Module):  # type: ignore[misc]
    """Attention whose positions are rotations of complex numbers, as LLaMA's first code has it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.q, self.k, self.v = (torch.nn.Linear(WIDTH, 48, bias=False) for _ in range(3))
        self.o = torch.nn.Linear(48, WIDTH, bias=False)
        angles = torch.outer(torch.arange(12.0), 100.0 ** (-torch.arange(0, 8, 2) / 8))
        self.register_buffer("turns", torch.polar(torch.ones(12, 4), angles))

    def turned(self, x: Any) -> Any:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], 4, 2))
        return torch.view_as_real(pairs * self.turns[: x.shape[1], None]).flatten(3).transpose(1, 2)

    def forward(self, x: Any) -> Any:
        q, k, v = (of(x).unflatten(-1, (6, 8)) for of in (self.q, self.k, self.v))
        found = functional.scaled_dot_product_attention(
            self.turned(q), self.turned(k), v.transpose(1, 2), is_causal=True
        )
        return self.o(found.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("tp", [2, 3])
def test_heads_are_cut_where_positions_are_complex_numbers(tp: int) -> None:
    made = assert_trains_alike(ComplexRotary(), tp, X)
    assert made.rank_program(0).state_dict["q.weight"].shape == (48 // tp, WIDTH)
    assert [call.op for call in made.work.local.collectives if call.op != "copy"] == ["all_reduce"]


class Spectral(torch.nn.Module):  # type: ignore[misc]
    """Complex numbers that ranks have parts of, before an operator without a rule, and given out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.up = torch.nn.Linear(12, 40)
        self.down = torch.nn.Linear(40, 12)

    def forward(self, x: Any) -> Any:
        h = torch.view_as_complex(self.up(x).unflatten(-1, (20, 2))).conj()
        return self.down(torch.view_as_real(torch.fft.fft(h)).flatten(-2)), h


@pytest.mark.parametrize("tp", [2, 3])
def test_complex_numbers_are_gathered_as_pairs(tp: int) -> None:
    model, x = Spectral().eval(), torch.randn(3, 5, 12)
    made = parallelize(model, x, tp=tp, pins={"up.weight": "column"})
    assert [call.op for call in made.work.local.collectives].count("all_gather") > 0
    mine, ranks = [made.rank_program(rank).module(check_guards=False) for rank in range(tp)], Ranks(tp)
    with torch.no_grad():
        for got in ranks.run(lambda rank: ranks.module(mine[rank], rank)(x)):
            for each, want in zip(got, model(x), strict=True):
                assert float((each - want).abs().max()) <= 1e-5 * float(want.abs().max())
