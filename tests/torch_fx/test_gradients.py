"""Gradients of families: on every rank, each parameter's is its part of one device's; sums forward and backward.

The loss is a random weighing of everything that is given out, so that no gradient is small by chance.
"""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'tpcompile[torch]'")
pytest.importorskip("transformers", reason="transformers is not installed")

from tests.torch_fx import models  # noqa: E402
from tests.torch_fx.lockstep import Ranks  # noqa: E402
from tests.torch_fx.side_by_side import modules, parallelized, tensors  # noqa: E402
from tpcompile.weights.ranges import take  # noqa: E402

SENT = {
    # Forward sums, gathers, backward sums. Two a layer each way; and a table of tokens sums forward, a head backward.
    ("llama", 2): (5, 1, 5),
    ("llama-tied", 4): (5, 1, 5),
    ("gpt2", 2): (5, 1, 5),
    ("bloom", 2): (5, 1, 5),
    ("t5", 2): (12, 1, 12),
    ("vit", 2): (4, 0, 4),
    # The norms inside heads have one weight for all heads: its gradient is a sum over them, twice a layer.
    ("qwen3", 4): (5, 1, 5 + 2 * 2),
    # Attention and feed-forward end in one sum, but read the outputs of two norms.
    ("falcon", 2): (3, 1, 2 * 2 + 1),
    # What the router weighs experts with is whole, what it weighs is cut.
    ("mixtral", 2): (5, 1, 5 + 2),
    ("mixtral-grouped", 2): (5, 1, 5 + 2),
}


def weighed(outputs: list[Any]) -> Any:
    """A loss of outputs of real numbers, the same for the same shapes."""
    generator = torch.Generator().manual_seed(11)
    return sum((each * torch.randn(each.shape, generator=generator)).sum() for each in outputs)


def of_one_device(name: str, example: Any) -> dict[str, Any]:
    """The gradient of every parameter by each of its names; None where it has none."""
    module = models.FAMILIES[name].make()
    weighed(tensors(module(**example))[:1]).backward()
    return {key: each.grad for key, each in module.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize(("name", "tp"), SENT)
def test_gradients_are_parts_of_one_devices(name: str, tp: int) -> None:
    example = models.inputs(name, 3, 11)
    want = of_one_device(name, example)
    made, mine, ranks = parallelized(name, tp, True), modules(name, tp, True), Ranks(tp)

    def step(rank: int) -> dict[str, Any]:
        weighed(tensors(ranks.module(mine[rank], rank)(*tensors(example)))[:1]).backward()
        return {key: each.grad for key, each in mine[rank].named_parameters(remove_duplicate=False)}

    found = ranks.run(step)
    counts = ranks.meeting.counts
    largest = max(float(each.abs().max()) for each in want.values() if each is not None)
    seen = 0
    for weight in made.work.local.weights:
        whole = want.get(weight.weight.name) if weight.weight.trained else None
        if whole is None:
            continue
        seen += 1
        for rank in range(tp):
            got, expected = found[rank][weight.name], torch.from_numpy(take(whole.numpy(), weight.parts[rank]))
            assert got.shape == expected.shape, (weight.name, rank)
            error = float((got - expected).abs().max())
            # the bias of attention's keys shifts all scores of a query alike: its gradient is nothing but rounding
            assert error <= 1e-4 * max(float(whole.abs().max()), 1e-2 * largest), (weight.name, rank, error)
    trained = {id(each) for each in want.values() if each is not None}
    assert seen == len(trained)
    sums, gathers, back = SENT[name, tp]
    wanted = {"all_reduce sum": sums, "all_gather": gathers, "backward all_reduce": back}
    assert counts == {what: count for what, count in wanted.items() if count}
