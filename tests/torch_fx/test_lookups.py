"""Elements picked by index, and what caches begin as: read as the standard operators, written as torch wrote them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'tpcompile[torch]'")

from tests.torch_fx.side_by_side import assert_given, run, taken  # noqa: E402
from tpcompile.torch.programs import Parallelized, parallelize  # noqa: E402

X = torch.linspace(-2, 3, 2 * 5 * 20).reshape(2, 5, 20)


class Body(torch.nn.Module):  # type: ignore[misc]
    """A product before and one after `middle`, which is given what the first makes: (batch, seq, 120)."""

    def __init__(self, middle: Callable[[Any], Any], width: int) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last = torch.nn.Linear(20, 120), torch.nn.Linear(width, 28)
        self.middle = middle

    def forward(self, x: Any) -> Any:
        return self.last(self.middle(self.first(x)))


class Table(torch.nn.Module):  # type: ignore[misc]
    """Rows of a table picked by ids of any sign, through a product."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.rows = torch.nn.Parameter(torch.randn(60, 24))
        self.last = torch.nn.Linear(24, 60)

    def forward(self, ids: Any) -> Any:
        return self.last(self.rows[ids])


def checked(model: Any, inputs: tuple[Any, ...], tp: int, **wishes: Any) -> Parallelized:
    made = parallelize(model.eval(), inputs, tp=tp, **wishes)
    mine = [made.rank_program(rank).module() for rank in range(tp)]
    with torch.no_grad():
        assert_given(made, run(made, mine, taken(made, inputs)), model(*inputs))
    return made


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("shape", [(7,), (2, 7)])
def test_negative_ids_of_a_cut_table(tp: int, shape: tuple[int, ...]) -> None:
    ids = torch.tensor([0, -1, 59, -60, 31, -30, 20] * 2)[: 7 * len(shape)].reshape(shape)
    made = checked(Table(), (ids,), tp, pins={"rows": "vocab"})
    assert made.rank_program(0).state_dict["rows"].shape == (60 // tp, 24)


@pytest.mark.parametrize("tp", [2, 4])
def test_a_constant_list_picks_one_part_of_a_fused_product(tp: int) -> None:
    """Ten heads of width 12, the last two read by all: those before are cut, and so are their products."""

    def heads(x: Any) -> Any:
        each = x.unflatten(-1, (10, 12))
        return (each[..., :-2, :] * each[..., [-2], :] + each[..., [-1], :]).softmax(-1).flatten(-2)

    made = checked(Body(heads, 96), (X,), tp)
    shapes = {name: tuple(each.shape) for name, each in made.rank_program(0).state_dict.items()}
    assert shapes["first.weight"] == ((8 // tp + 2) * 12, 20)
    assert shapes["last.weight"] == (28, 96 // tp)


def test_several_neighbours_picked_by_a_constant_list() -> None:
    checked(Body(lambda x: x.unflatten(-1, (10, 12))[..., [2, 3, 4], :].flatten(-2), 36), (X,), 2)


def test_a_constant_list_in_disorder() -> None:
    checked(Body(lambda x: x.unflatten(-1, (10, 12))[..., [7, 0, -3], :].flatten(-2), 36), (X,), 2)


def test_nothing_joined_to_something_is_that_thing() -> None:
    made = checked(Body(lambda x: torch.cat([torch.empty(0), x], -1), 120), (X,), 2)
    assert "Concat" not in {node.op for node in made.work.program.nodes}
    targets = {str(node.target) for node in made.rank_program(0).graph.nodes}
    assert not targets & {"aten.cat.default", "aten.lift_fresh_copy.default"}
