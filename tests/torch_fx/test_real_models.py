"""Every family on 2 and 4 ranks, some on 3: numbers, collectives, bytes, caches, and what runs whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'tpcompile[torch]'")
pytest.importorskip("transformers", reason="transformers is not installed")

from tests.torch_fx import models  # noqa: E402
from tests.torch_fx.side_by_side import (  # noqa: E402
    Ran,
    assert_given,
    modules,
    parallelized,
    run,
    run_at_once,
    taken,
    tensors,
)
from tpcompile.errors import Refused  # noqa: E402
from tpcompile.plan_summary import summarize  # noqa: E402
from tpcompile.torch import load  # noqa: E402
from tpcompile.torch.programs import Parallelized  # noqa: E402


@dataclass(frozen=True)
class Expected:
    """What a family sends: `sums` AllReduces and `gathers` AllGathers in a run; `bars` limit a rank's share of the
    weights, by the number of ranks.
    """

    sums: int
    gathers: int
    bars: dict[int, float]


USUAL = {2: 0.54, 3: 0.42, 4: 0.31}
TWO_A_LAYER = Expected(2 * 2 + 1, 1, USUAL)
"""Attention and feed-forward end in a sum each, the table of the tokens in one; logits are gathered."""
ONE_A_LAYER = Expected(2 + 1, 1, USUAL)
"""Attention and feed-forward stand side by side: their sums are one."""
EXPECTED = {
    **dict.fromkeys(("llama", "llama-tied", "llama-odd", "llama-kv", "qwen2", "qwen3", "gemma2"), TWO_A_LAYER),
    **dict.fromkeys(("gpt2", "gpt2-kv", "phi3", "bloom", "bert", "mixtral", "mixtral-grouped"), TWO_A_LAYER),
    **dict.fromkeys(("gpt-neox", "falcon", "falcon-mqa"), ONE_A_LAYER),
    # Two a layer of the encoder and three of the decoder; the table of tokens is read on both sides.
    "t5": Expected(2 * 2 + 2 * 3 + 2, 1, {2: 0.55, 3: 0.43, 4: 0.33}),
    "bart": Expected(2 * 2 + 2 * 3 + 2, 1, USUAL),
    # The same; in place of the encoder's table, the second convolution is row parallel.
    "whisper": Expected(2 * 2 + 2 * 3 + 2, 1, USUAL),
    # Patches come in and classes go out: neither is cut.
    "vit": Expected(2 * 2, 0, {2: 0.56, 3: 0.44, 4: 0.34}),
}
CASES = [(name, tp) for name in models.FAMILIES for tp in (2, 4)]
UNEVEN = [(name, 3) for name in ("llama", "gpt2-kv", "bert", "falcon")]


def ran(made: Parallelized, name: str, tp: int, mine: list[Any]) -> Ran:
    """By the programs that users get on 2 ranks; on more, while they are written."""
    return run(made, modules(name, tp), mine) if tp == 2 else run_at_once(made, mine)


@pytest.mark.parametrize(("name", "tp"), CASES + UNEVEN)
def test_ranks_give_what_one_device_gives(name: str, tp: int) -> None:
    made = parallelized(name, tp)
    for sizes in [(2, 7, 5), (3, 11, 4)]:
        example = models.inputs(name, *sizes)
        with torch.no_grad():
            want = models.module(name)(**example)
        mine = taken(made, example)
        got = ran(made, name, tp, mine)
        assert_given(made, got, want)
        expected = EXPECTED[name]
        wanted = {"all_reduce sum": expected.sums, "all_gather": expected.gathers}
        assert got.counts == {what: count for what, count in wanted.items() if count}


@pytest.mark.parametrize(("name", "tp"), CASES + UNEVEN)
def test_ranks_hold_their_share(name: str, tp: int) -> None:
    summary = summarize(parallelized(name, tp).work)
    whole = sum(row.nbytes for row in summary.weights)
    held = [sum(row.rank_bytes[rank] for row in summary.weights) for rank in range(tp)]
    assert max(held) / whole <= EXPECTED[name].bars[tp]
    for rank, module in enumerate(modules(name, tp) if tp == 2 else ()):
        stored = {tensor.data_ptr(): tensor.nbytes for tensor in module.state_dict().values() if tensor.numel()}
        assert sum(stored.values()) <= held[rank]
    assert (
        Counter(row.op for row in summary.collectives)
        == Counter({"all_reduce": EXPECTED[name].sums, "all_gather": EXPECTED[name].gathers}) - Counter()
    )


@pytest.mark.parametrize("name", models.FAMILIES)
def test_nothing_runs_whole_for_want_of_a_rule(name: str) -> None:
    assert parallelized(name, 2).warnings == ()


@pytest.mark.parametrize(("name", "tp"), [("llama-kv", 2), ("llama-kv", 4), ("gpt2-kv", 3)])
def test_caches_stay_cut_from_step_to_step(name: str, tp: int) -> None:
    """A prompt without a past, then two steps: each rank's outputs are its next inputs."""
    made, module = parallelized(name, tp), models.module(name)
    pairs = [(pair.input.name, pair.output.name, pair.axis, pair.kind) for pair in made.work.state]
    outputs = [value.name for value in made.work.program.outputs]
    assert pairs == [(f"past_{k}", output, 2, "append") for k, output in enumerate(outputs[1:])]
    assert set(made.work.local.doors) == {end for pair in pairs for end in pair[:2]}
    assert {place.axis for place in made.work.local.doors.values()} == {1}
    example = models.inputs(name, 2, 6, 0)
    whole, mine = tensors(example), taken(made, example)
    for step in range(3):
        with torch.no_grad():
            want = tensors(module(whole[0], whole[1], whole[2:]))
        got = ran(made, name, tp, mine)
        assert_given(made, got, want)
        ids = models.tokens(2, 1 + step)[:, -1:]
        mask = torch.cat([whole[1], torch.ones(2, 1, dtype=torch.int64)], 1)
        whole = [ids, mask, *want[1:]]
        mine = [[ids, mask, *each[1:]] for each in got.outputs]


def test_operators_of_transformers_go_through_a_bundle(tmp_path: Path) -> None:
    name = "mixtral-grouped"
    made = parallelized(name, 2)
    made.save(tmp_path / "model.tp2")
    with pytest.raises(Refused, match="calls the operator transformers::grouped_mm_fallback, which is neither torch's"):
        load(tmp_path / "model.tp2", 0)
    mine = [load(tmp_path / "model.tp2", rank, namespaces=["transformers"]).module() for rank in range(2)]
    example = models.inputs(name, 3, 11, 4)
    with torch.no_grad():
        want = models.module(name)(**example)
    assert_given(made, run(made, mine, taken(made, example)), want)
