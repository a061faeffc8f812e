"""What two processes of a run agree on before they compute."""

from __future__ import annotations

import torch.distributed as dist

from tests.torch_fx import on_ranks
from tpcompile.errors import Fault, Refused, refuse
from tpcompile.torch.run import together


def check_a_refusal_of_one_is_one_of_all() -> None:
    def make() -> int:
        if dist.get_rank():
            raise refuse("TP455", "rank1.pt2", "is not there", "Copy it")
        return 5

    try:
        together(make)
    except Refused as refused:
        assert refused.faults == (Fault("TP455", "rank1.pt2", "is not there", "Copy it"),)
    else:
        raise AssertionError("nothing was refused")


def check_bundles_of_two_compiles() -> None:
    assert together(dist.get_rank, "same") == dist.get_rank()
    try:
        together(lambda: None, f"of process {dist.get_rank()}")
    except Refused as refused:
        assert str(refused) == (
            "TP758 bundle.json: processes 0, 1 have bundles of different compiles. "
            "Copy the whole bundle to every machine again"
        )
    else:
        raise AssertionError("nothing was refused")


if __name__ == "__main__":
    on_ranks.main(globals())
