"""What NCCL cannot combine is told before it is asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from onnx import TensorProto

from tests.run.gpu import fake_cuda
from tpcompile.errors import RankFailed
from tpcompile.run import nccl
from tpcompile.targets.collectives import Collective

LIBRARY = SimpleNamespace(DataType=fake_cuda.DataType, RedOp=fake_cuda.RedOp)
REPORT = "Compile the model again; if that does not help, report it with the bundle"


def sum_of(element: int, reduce_op: str = "sum") -> tuple[int, int]:
    return nccl.summed_as(Collective("all_reduce", "x", "y", "n", 2, (), reduce_op), element, LIBRARY)


def test_types_and_reductions() -> None:
    assert sum_of(TensorProto.BFLOAT16, "avg") == (fake_cuda.DataType.Bfloat16, fake_cuda.RedOp.Avg)
    assert sum_of(TensorProto.BOOL) == (fake_cuda.DataType.Uint8, fake_cuda.RedOp.Max)  # any of them
    assert sum_of(TensorProto.BOOL, "prod") == (fake_cuda.DataType.Uint8, fake_cuda.RedOp.Min)  # all of them


@pytest.mark.parametrize(
    ("element", "reduce_op", "text"),
    [
        (TensorProto.INT16, "sum", f"TP611 all_reduce(sum) of 'x': NCCL cannot combine values of int16. {REPORT}"),
        (TensorProto.BOOL, "avg", f"TP611 all_reduce(avg) of 'x': bools have no average. {REPORT}"),
    ],
)
def test_what_does_not_add(element: int, reduce_op: str, text: str) -> None:
    with pytest.raises(RankFailed) as failed:
        sum_of(element, reduce_op)
    assert str(failed.value) == text


def test_types_are_those_of_the_library() -> None:
    real = pytest.importorskip("nccl.bindings.nccl")
    assert {getattr(real.DataType, name) for name in nccl.TYPES.values()} <= set(real.DataType)
    assert {getattr(real.RedOp, name) for name in nccl.REDUCTIONS.values()} <= set(real.RedOp)
