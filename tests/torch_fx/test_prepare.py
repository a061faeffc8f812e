"""What is done to a graph before it is read, as small graphs before and after."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'tpcompile[torch]'")

from tpcompile.torch.prepare import prepared  # noqa: E402

F = torch.nn.functional
X = torch.linspace(-2, 2, 2 * 3 * 5).reshape(2, 3, 5)


class Does(torch.nn.Module):  # type: ignore[misc]
    """A module that is one function."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, *args: Any) -> Any:
        return self.body(*args)


def exported(body: Any, *args: Any) -> Any:
    return torch.export.export(Does(body).train(), args, strict=False)


def calls(program: Any) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_what_is_written_in_place_is_made_anew() -> None:
    def body(x: Any) -> Any:
        y = x * 2
        y.add_(1)
        y += x
        return y * y

    before = exported(body, X)
    assert calls(before) == ["aten.mul.Tensor", "aten.add_.Tensor", "aten.add_.Tensor", "aten.mul.Tensor"]
    after = prepared(before)
    assert calls(after) == ["aten.mul.Tensor", "aten.add.Tensor", "aten.add.Tensor", "aten.mul.Tensor"]
    torch.testing.assert_close(torch.fx.Interpreter(after.graph_module).run(X)[0], body(X))
    assert calls(before)[1] == "aten.add_.Tensor"  # the graph that was given is as it was


def test_what_is_written_through_a_view_is_left_to_torch() -> None:
    def body(x: Any) -> Any:
        y = x * 2
        y[:, 1:].mul_(3)
        return y + 1

    after = prepared(exported(body, X))
    operators = [node.target for node in after.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    assert operators and not any(operator._schema.is_mutable for operator in operators)
    torch.testing.assert_close(torch.fx.Interpreter(after.graph_module).run(X)[0], body(X))


def test_dropout_multiplies_with_noise_that_it_draws() -> None:
    after = prepared(exported(lambda x: F.dropout(x * 2, 0.25), X))
    assert calls(after) == ["aten.mul.Tensor", "tpcompile.noise.default", "aten.mul.Tensor"]
    torch.manual_seed(3)
    got = torch.fx.Interpreter(after.graph_module).run(X)[0]
    torch.manual_seed(3)
    assert torch.equal(got, F.dropout(X * 2, 0.25))


def test_dropout_of_nothing_stays() -> None:
    assert calls(prepared(exported(lambda x: F.dropout(x, 0.0), X))) == ["aten.dropout.default"]


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added"])
@pytest.mark.parametrize("groups", [1, 3])
def test_attention_that_drops_is_computed_step_by_step_with_the_same_numbers(mask: str, groups: int) -> None:
    torch.manual_seed(5)
    q = torch.randn(2, 6, 5, 8)
    k, v = (torch.randn(2, 6 // groups, 5, 8) for _ in range(2))
    hidden = torch.rand(2, 1, 5, 5) < 0.7
    hidden[..., 0] = True
    given = {"none": None, "causal": None, "bool": hidden, "added": torch.randn(2, 1, 5, 5)}[mask]

    def body(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(
            q, k, v, given, dropout_p=0.3, is_causal=mask == "causal", enable_gqa=groups > 1, scale=0.4
        )

    after = prepared(exported(body, q, k, v))
    assert "tpcompile.noise.default" in calls(after)
    assert "aten.scaled_dot_product_attention.default" not in calls(after)
    tensors = [tensor for tensor in (given,) if tensor is not None]
    torch.manual_seed(7)
    got = torch.fx.Interpreter(after.graph_module).run(*tensors, q, k, v)[0]
    torch.manual_seed(7)
    torch.testing.assert_close(got, body(q, k, v))
