"""The operators of rank programs: values, gradients and traffic in real processes; shapes without any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="rank programs of torch need torch")

from tests.torch_fx import collective_checks, compile_checks, on_ranks  # noqa: E402 - they import torch
from tpcompile.errors import Refused  # noqa: E402
from tpcompile.torch import groups  # noqa: E402

ops = torch.ops.tpcompile


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    return on_ranks.outcomes(collective_checks.__name__, 4)


@pytest.mark.parametrize("check", on_ranks.names_of_checks(collective_checks))
def test_on_four_ranks(check: str, told: dict[str, str]) -> None:
    assert told[check] == ""


def test_on_two_ranks_under_torch_compile() -> None:
    said = on_ranks.outcomes(compile_checks.__name__, 2)
    assert said == dict.fromkeys(on_ranks.names_of_checks(compile_checks), "")


def test_shapes_without_any_process() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        with FakeTensorMode():
            x = torch.empty(6, 5, dtype=dtype)
            made = {
                "all_reduce": ops.all_reduce(x, "0,1,2", "max"), "copy": ops.copy(x, "0,1,2"),
                "all_gather": ops.all_gather(x, "0,1,2"), "own_part": ops.own_part(x, "0,1,2"),
                "broadcast": ops.broadcast(x, "0,1,2", 1), "once": ops.once(x, False),
            }  # fmt: skip
            assert {name: tuple(y.shape) for name, y in made.items()} == {
                "all_reduce": (6, 5), "copy": (6, 5), "all_gather": (18, 5), "own_part": (2, 5),
                "broadcast": (6, 5), "once": (6, 5),
            }  # fmt: skip
            assert {y.dtype for y in made.values()} == {dtype}


def test_symbolic_sizes_survive_and_labels_are_found() -> None:
    class Rank(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            y = ops.all_gather(ops.copy(x, "0,1,2,3"), "1,3")
            return ops.all_reduce(y, group="0,1,2,3")

    rows = torch.export.Dim("rows", min=2, max=512)
    program = torch.export.export(Rank(), (torch.ones(6, 5),), dynamic_shapes=({0: rows},), strict=False)
    (symbol,) = program.range_constraints
    assert [str(node.meta["val"].shape[0]) for node in program.graph.nodes if node.op != "output"] == [
        str(symbol), str(symbol), f"2*{symbol}", f"2*{symbol}"
    ]  # fmt: skip
    assert groups.labels_of(program) == ("0,1,2,3", "1,3")
    assert groups.labels_of(program.module()) == ("0,1,2,3", "1,3")


def test_what_needs_no_process_obeys_the_rules_of_operators() -> None:
    x = torch.randn(6, 5, requires_grad=True)
    for keep in (True, False):
        torch.library.opcheck(ops.once.default, (x, keep))
    torch.library.opcheck(ops.copy.default, (x, "0,1"), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("label", ["", "1,0", "0,0", "0, 1", "a", "-1", "01", "0,1,", "٣"])
def test_what_is_no_label(label: str) -> None:
    with pytest.raises(Refused) as caught:
        groups.members(label)
    assert str(caught.value) == (
        f"TP751 group {label!r}: is no group of ranks. "
        'It lists tensor-parallel ranks in ascending order, as "0,1,2,3" does'
    )


def test_groups_need_the_default_process_group(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        groups.use(2)
    assert str(caught.value) == (
        "TP750 groups.use: there is no default process group. "
        "Start the script with torchrun and call torch.distributed.init_process_group() first"
    )
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(Refused) as caught:
            groups.use(2)
        assert str(caught.value) == (
            "TP752 groups.use(tp=2): 1 processes are no multiple of 2 tensor-parallel ranks. "
            "Start 2 processes, or several times as many: torchrun --nproc-per-node 2 …"
        )
        with pytest.raises(Refused) as caught:
            groups.use(1, ["0,1"])
        assert str(caught.value) == (
            "TP751 group '0,1': names a rank that 1 tensor-parallel ranks do not have. Ranks are 0 to 0"
        )
        assert groups.use(1).by_label["0"].size() == 1
    finally:
        torch.distributed.destroy_process_group()
    with pytest.raises(Refused, match=r"^TP750 tpcompile: a collective runs"):
        groups.current()
