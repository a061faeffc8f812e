"""The captured families compute what their modules compute, at other sizes too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch_fx.models import (
    FAMILIES,
    TRAINED,
    exported,
    exported_training_step,
    inputs,
    module,
    torch,
    training_inputs,
    training_step,
)


def tensors(result: Any) -> list[Any]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def assert_equal(got: Any, want: Any) -> None:
    for one, other in zip(tensors(got), tensors(want), strict=True):
        assert one.shape == other.shape
        assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()  # type: ignore[untyped-decorator]
def test_the_captured_program_at_other_sizes(name: str) -> None:
    program = exported(name).module()
    for sizes in [(3, 11, 4), (2, 5, 9)]:
        example = inputs(name, *sizes)
        assert_equal(program(**example), module(name)(**example))


@pytest.mark.parametrize("name", ["llama-kv", "gpt2-kv"])
@pytest.mark.parametrize("sizes", [(2, 1, 9), (3, 6, 0)])
@torch.no_grad()  # type: ignore[untyped-decorator]
def test_a_step_of_one_token_and_a_past_of_none(name: str, sizes: tuple[int, int, int]) -> None:
    example = inputs(name, *sizes)
    assert_equal(exported(name).module()(**example), module(name)(**example))


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_are_drawn_and_keep_their_names(name: str) -> None:
    names = {spec.target for spec in exported(name).graph_signature.input_specs if spec.kind.name == "PARAMETER"}
    for key, parameter in module(name).named_parameters():
        assert key in names
        assert bool((parameter < 0).any() and (parameter > 0).any()), key


@pytest.mark.parametrize("name", TRAINED)
def test_loss_and_gradients_of_the_captured_training_step(name: str) -> None:
    step, captured = training_step(name), exported_training_step(name).module()
    example = training_inputs(3, 9)
    want, got = step(**example), captured(**example)
    assert_equal(got, want)
    want.backward()
    got.backward()
    gradients = {key: parameter.grad for key, parameter in captured.named_parameters()}
    for key, parameter in step.named_parameters():
        assert_equal(gradients[key], parameter.grad)


def test_dropout_is_captured() -> None:
    captured = exported_training_step("bert", dropout=0.25).module()
    example = training_inputs()
    torch.manual_seed(3)
    first = float(captured(**example))
    assert first != float(captured(**example))
    torch.manual_seed(3)
    assert first == float(captured(**example))
