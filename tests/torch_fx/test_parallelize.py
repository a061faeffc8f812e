"""`parallelize` on small models whose every part is plain to see: names, parts, what is inserted, what is refused."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'tpcompile[torch]'")

import tpcompile.torch as tpcompile_torch  # noqa: E402
from tests.torch_fx.lockstep import Ranks  # noqa: E402
from tpcompile.errors import Refused  # noqa: E402
from tpcompile.torch import parallelize  # noqa: E402


class Mlp(torch.nn.Module):  # type: ignore[misc]
    """A norm, and two products around a nonlinearity, with biases."""

    def __init__(self, width: int = 20, inner: int = 84) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, inner)
        self.down = torch.nn.Linear(inner, width)
        self.spare = torch.nn.Parameter(torch.empty(7))  # nothing reads it, checkpoints have it
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.3)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class StaticCache(torch.nn.Module):  # type: ignore[misc]
    """Attention over keys that the module remembers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.q, self.k = (torch.nn.Linear(24, 48, bias=False) for _ in range(2))
        self.o = torch.nn.Linear(48, 24, bias=False)
        self.register_buffer("keys", torch.randn(2, 6, 10, 8))

    def forward(self, x: Any, place: Any) -> Any:
        q, k = (of(x).unflatten(-1, (6, 8)).transpose(1, 2) for of in (self.q, self.k))
        self.keys.index_copy_(2, place, k)
        found = torch.nn.functional.scaled_dot_product_attention(q, self.keys, self.keys)
        return self.o(found.transpose(1, 2).flatten(2))


X = torch.linspace(-2, 2, 2 * 3 * 20).reshape(2, 3, 20)
DYNAMIC = {"x": {0: "batch", 1: "seq"}}


def modules(made: Any) -> list[Any]:
    return [made.rank_program(rank).module() for rank in range(made.tp)]


def outputs(made: Any, *args: Any) -> list[Any]:
    ranks, mine = Ranks(made.tp), modules(made)
    return ranks.run(lambda rank: ranks.module(mine[rank], rank)(*args))


def operators(made: Any, rank: int = 0) -> Counter[str]:
    program = made.rank_program(rank)
    return Counter(str(n.target) for n in program.graph.nodes if "tpcompile" in str(n.target))


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_names_stay_and_parts_are_parts(tp: int) -> None:
    model = Mlp().eval()
    made = parallelize(model, (X,), dynamic=DYNAMIC, tp=tp)
    for rank in range(tp):
        state = made.rank_program(rank).state_dict
        assert {name: tuple(each.shape) for name, each in state.items()} == {
            "norm.weight": (20,),
            "norm.bias": (20,),
            "up.weight": (84 // tp, 20),
            "up.bias": (84 // tp,),
            "down.weight": (20, 84 // tp),
            "down.bias": (20,),
            "spare": (7,),
        }
        rows = slice(rank * 84 // tp, (rank + 1) * 84 // tp)
        assert torch.equal(state["up.weight"], model.up.weight[rows])
        assert torch.equal(state["down.weight"], model.down.weight[:, rows])
        assert torch.equal(state["down.bias"], model.down.bias)
    for got in outputs(made, X):
        torch.testing.assert_close(got, model(X))
    longer = torch.cat([X, -X], 1)[:, :5]
    for got in outputs(made, longer):
        torch.testing.assert_close(got, model(longer))


def test_a_program_to_run_has_one_sum_and_one_to_train_a_copy_as_well() -> None:
    run = parallelize(Mlp().eval(), (X,), dynamic=DYNAMIC, tp=2)
    assert operators(run) == {"tpcompile.all_reduce.default": 1, "tpcompile.once.default": 1}
    train = parallelize(Mlp().train(), (X,), dynamic=DYNAMIC, tp=2)
    assert operators(train) == {
        "tpcompile.all_reduce.default": 1,
        "tpcompile.once.default": 1,
        "tpcompile.copy.default": 1,
    }


def test_gradients_of_whole_parameters_are_whole_and_of_parts_parts() -> None:
    model = Mlp().train()
    made = parallelize(model, (X,), dynamic=DYNAMIC, tp=3)
    ranks, mine = Ranks(3), modules(made)
    weights = torch.linspace(-1, 1, X.numel()).reshape(X.shape)

    def step(rank: int) -> dict[str, Any]:
        (ranks.module(mine[rank], rank)(X) * weights).sum().backward()
        return {name: parameter.grad for name, parameter in mine[rank].named_parameters()}

    found = ranks.run(step)
    (model(X) * weights).sum().backward()
    for rank, gradients in enumerate(found):
        assert gradients.pop("spare") is None
        rows = slice(rank * 28, rank * 28 + 28)
        for name in gradients:
            whole = model.get_parameter(name).grad
            mine_of = {"up.weight": whole[rows], "up.bias": whole[rows]}.get(name, whole)
            mine_of = whole[:, rows] if name == "down.weight" else mine_of
            torch.testing.assert_close(gradients[name], mine_of, rtol=1e-4, atol=1e-5)


def test_a_program_made_to_run_refuses_gradients() -> None:
    made = parallelize(Mlp().eval(), (X,), dynamic=DYNAMIC, tp=2)
    mine = modules(made)
    assert not any(parameter.requires_grad for module in mine for parameter in module.parameters())
    node = next(n for n in made.rank_program(0).graph.nodes if "all_reduce" in str(n.target))
    assert node.kwargs == {"trains": False}
    with torch._subclasses.FakeTensorMode(), pytest.raises(Refused) as told:
        x = torch.empty(2, 3, requires_grad=True)
        torch.ops.tpcompile.all_reduce(x, "0,1", **node.kwargs).sum().backward()
    assert str(told.value) == (
        "TP759 backward: a gradient comes to a program that was made to run only. "
        "Make it with training=True (on the command line: --training)"
    )


def test_a_buffer_that_is_written_stays_cut_from_run_to_run() -> None:
    model, x, place = StaticCache().eval(), torch.linspace(-1, 1, 2 * 3 * 24).reshape(2, 3, 24), torch.tensor([1, 4, 2])
    made = parallelize(copy.deepcopy(model), (x, place), tp=2)
    assert made.rank_program(0).state_dict["keys"].shape == (2, 3, 10, 8)
    ranks, mine = Ranks(2), modules(made)
    for k in range(3):
        want = model(x * k, place + k)
        for got in ranks.run(lambda rank, k=k: ranks.module(mine[rank], rank)(x * k, place + k)):
            torch.testing.assert_close(got, want)


def test_saved_loaded_and_merged_the_weights_are_the_same_bits(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = Mlp().eval()
    parallelize(model, (X,), dynamic=DYNAMIC, tp=4).save(tmp_path / "m.tp4")
    tpcompile_torch.merge(tmp_path / "m.tp4", tmp_path / "merged.safetensors")
    merged = load_file(tmp_path / "merged.safetensors")
    assert merged.keys() == model.state_dict().keys()
    assert all(torch.equal(merged[name], tensor) for name, tensor in model.state_dict().items())
    program = tpcompile_torch.load(tmp_path / "m.tp4", 1)
    assert torch.equal(program.state_dict["up.weight"], model.up.weight[21:42])


# -- what is refused -------------------------------------------------


class ByContent(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x[: int(x.sum().item())]


class Breaks(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x + (1 if x.sum() > 0 else 2)


class WritesInput(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        x.add_(1)
        return x * 2


def refusal(model: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(Refused) as told:
        parallelize(model, *args, tp=2, **kwargs)
    return str(told.value)


def test_a_module_without_inputs_is_refused() -> None:
    assert refusal(Mlp().eval()) == (
        "TP701 Mlp: a torch.nn.Module is exported by running it, and there are no inputs. "
        "Give example_inputs: a tuple, or a mapping by name, of tensors as the model takes them"
    )


def test_what_is_no_model_is_refused() -> None:
    assert refusal({"a": 1}) == (
        "TP230 an object of type dict is no PyTorch model. "
        "Give a torch.nn.Module with example_inputs, a torch.export.ExportedProgram or the path of a .pt2"
    )


@pytest.mark.parametrize("model", [ByContent(), Breaks()])
def test_a_graph_that_depends_on_content_is_refused(model: Any) -> None:
    said = refusal(model.eval(), (X,))
    assert said.startswith(f"TP721 {type(model).__name__}: its graph depends on the content of a tensor: ")
    assert said.endswith(
        "Write it without .item(), boolean masks and branches on tensors, or bound the size with torch._check"
    )


def test_a_graph_that_writes_into_what_it_is_given_is_refused() -> None:
    assert refusal(WritesInput().eval(), (X.clone(),)) == (
        "TP723 x: the graph writes into what it is given: 'x'. Give back what it makes, as an output"
    )


class Recurrent(torch.nn.Module):  # type: ignore[misc]
    """An operator that no rule speaks of, between products."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.up = torch.nn.Linear(12, 20)
        self.rnn = torch.nn.LSTM(20, 16, batch_first=True)
        self.out = torch.nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        return self.out(self.rnn(self.up(x).relu())[0])


@pytest.mark.filterwarnings("ignore:The tensor attributes")  # torch.export, of what LSTM remembers
def test_what_has_no_rule_runs_whole_and_is_named() -> None:
    model, x = Recurrent().eval(), torch.randn(3, 5, 12)
    made = parallelize(model, x, tp=2)
    assert made.warnings == ("1 node runs whole on every rank, for want of a rule: 1 lstm",)
    for got in outputs(made, x):
        assert torch.allclose(got, model(x), atol=1e-5)


class NamedAsPythons(torch.nn.Module):  # type: ignore[misc]
    """Inputs that are called as Python's own functions are; two are given out as they came."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.up = torch.nn.Linear(12, 20)
        self.down = torch.nn.Linear(20, 10)

    def forward(self, input: Any, type: Any, max: Any) -> Any:
        return self.down((self.up(input) * type).relu()) + max, input, type


def test_inputs_named_as_functions_of_python(tmp_path: Path) -> None:
    model, args = NamedAsPythons().eval(), (torch.randn(3, 12), torch.randn(20), torch.randn(10))
    made = parallelize(model, args, tp=2)
    assert [value.name for value in made.work.program.inputs] == ["input", "type", "max"]
    made.save(tmp_path / "model.tp2")
    ranks, mine = Ranks(2), [tpcompile_torch.load(tmp_path / "model.tp2", rank).module() for rank in range(2)]
    for got in ranks.run(lambda rank: ranks.module(mine[rank], rank)(*args)):
        for each, want in zip(got, model(*args), strict=True):
            assert torch.allclose(each, want, atol=1e-5)
