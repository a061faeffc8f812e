"""torch models through the door: in memory, with names and dynamic axes, and refused clearly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tpcompile
from tpcompile.errors import Refused
from tpcompile.graph.doors import open_model
from tpcompile.graph.from_onnx import to_program
from tpcompile.graph.read import SourceModel
from tpcompile.weights.source import MemoryBytes

torch: Any = pytest.importorskip("torch", reason="the torch door needs torch")
pytest.importorskip("onnxscript", reason="torch.onnx needs onnxscript")

AXES = {"ids": {0: "batch", 1: "seq"}, "mask": {0: "batch", 1: "seq"}}


class Small(torch.nn.Module):  # type: ignore[misc]
    """An embedding and two layers with unequal sizes and biases that count."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed = torch.nn.Embedding(503, 64)
        self.up = torch.nn.Linear(64, 170)
        self.down = torch.nn.Linear(170, 48)

    def forward(self, ids: Any, mask: Any) -> Any:
        return self.down(torch.tanh(self.up(self.embed(ids)))) * mask[..., None]


def inputs(batch: int = 2, seq: int = 3) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(9)
    return torch.randint(0, 503, (batch, seq), generator=generator), torch.ones(batch, seq)


@pytest.fixture
def module() -> Any:
    return Small().eval()


def run(source: SourceModel, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """What ONNX Runtime makes of the source, its weights put in from where the source says they lie."""
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            place = source.bytes_of(tensor)
            assert isinstance(place, MemoryBytes)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = bytes(place.data)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, feeds)[0]
    return result


def test_a_module_with_names_and_dynamic_axes(module: Any) -> None:
    source = open_model(
        module,
        example_inputs=inputs(),
        dynamic=AXES,
        input_names=["input_ids", "attention_mask"],
        output_names=["logits"],
    )
    program = to_program(source)
    assert source.file == "the Small"
    assert [(value.name, value.dtype, value.shape) for value in (*program.inputs, *program.outputs)] == [
        ("input_ids", "int64", ("batch", "seq")),
        ("attention_mask", "float32", ("batch", "seq")),
        ("logits", "float32", ("batch", "seq", 48)),
    ]
    ids, mask = inputs(5, 7)
    got = run(source, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
    want = module(ids, mask).detach().numpy()
    assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()


def test_weights_are_the_modules_own_memory(module: Any) -> None:
    source = open_model(module, example_inputs=inputs())
    place = source.external["embed.weight"]
    assert isinstance(place, MemoryBytes)
    assert np.shares_memory(np.frombuffer(place.data, np.float32), module.embed.weight.detach().numpy())
    assert source.folder is None


def test_inputs_by_name_come_in_the_order_of_forward(module: Any) -> None:
    ids, mask = inputs()
    source = open_model(module, example_inputs={"mask": mask, "ids": ids}, dynamic=AXES, input_names=["a", "b"])
    assert [(value.name, value.dtype) for value in to_program(source).inputs] == [("a", "int64"), ("b", "float32")]


def test_a_single_tensor() -> None:
    source = open_model(torch.nn.Linear(40, 30).eval(), example_inputs=torch.ones(2, 40))
    assert [value.shape for value in to_program(source).inputs] == [(2, 40)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype: str) -> None:
    module = Small().to(getattr(torch, dtype)).eval()
    ids, mask = inputs()
    source = open_model(module, example_inputs=(ids, mask.to(getattr(torch, dtype))))
    weight = to_program(source).values["embed.weight"].weight
    assert weight is not None
    assert (weight.dtype, weight.source.nbytes) == (dtype, 503 * 64 * 2)


def test_an_exported_program(module: Any) -> None:
    batch, seq = torch.export.Dim("batch"), torch.export.Dim("seq")
    axes = {name: {0: batch, 1: seq} for name in ("ids", "mask")}
    exported = torch.export.export(module, inputs(), dynamic_shapes=axes)
    source = open_model(exported, output_names=["logits"])
    program = to_program(source)
    assert source.file == "the ExportedProgram"
    assert [value.name for value in (*program.inputs, *program.outputs)] == ["ids", "mask", "logits"]
    assert program.inputs[0].shape == program.inputs[1].shape
    assert all(isinstance(axis, str) for axis in program.inputs[0].shape or ())


def refusal(model: Any, **arguments: Any) -> str:
    with pytest.raises(Refused) as caught:
        open_model(model, **arguments)
    return str(caught.value)


def test_no_example_inputs(module: Any) -> None:
    expected = (
        "TP701 Small: a torch.nn.Module is exported by running it, and there are no inputs. "
        "Give example_inputs: a tuple, or a mapping by name, of tensors as the model takes them"
    )
    assert refusal(module) == expected


def test_training_mode() -> None:
    assert refusal(Small(), example_inputs=inputs()) == "TP701 Small: is in training mode. Call model.eval() first"


def test_an_export_that_fails(module: Any) -> None:
    expected = (
        "TP703 Small: torch.onnx.export fails: TypeError: missing a required argument: 'mask'. "
        "Make torch.onnx.export(model, ..., dynamo=True) work first, or give an .onnx file"
    )
    assert refusal(module, example_inputs=(inputs()[0],)) == expected


def test_the_exporter_is_missing(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'onnxscript'")

    monkeypatch.setattr(torch.onnx, "export", fail)
    expected = (
        "TP702 Small: torch's ONNX exporter cannot start: No module named 'onnxscript'. "
        "Run `pip install 'tpcompile[torch]'`"
    )
    assert refusal(module, example_inputs=inputs()) == expected


def test_example_inputs_for_an_exported_program(module: Any) -> None:
    exported = torch.export.export(module, inputs())
    expected = (
        "TP230 example_inputs given with an object of type torch.export.exported_program.ExportedProgram. "
        "These say how to export a torch.nn.Module: leave them out here"
    )
    assert refusal(exported, example_inputs=inputs()) == expected


def test_a_module_is_compiled_and_verified(module: Any, tmp_path: Any) -> None:
    bundle = tpcompile.compile(
        module,
        2,
        tmp_path / "bundle",
        verify=True,
        example_inputs=inputs(),
        input_names=["ids", "mask"],
        output_names=["y"],
        dynamic=AXES,
    )
    assert bundle.report is not None and bundle.report.ok
    assert [call.op for call in bundle.manifest.collectives] == ["all_reduce", "all_reduce"]
    assert "sum" in bundle.manifest.collectives[1].because or "cut along" in bundle.manifest.collectives[1].because
    ids, mask = inputs(3, 5)
    with bundle.session() as session:
        got = session.run(["y"], {"ids": ids.numpy(), "mask": mask.numpy()})[0]
    np.testing.assert_allclose(got, module(ids, mask).detach().numpy(), rtol=1e-4, atol=1e-5)
