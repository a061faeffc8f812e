"""torch models to onnx_ir, through torch's own exporter, in memory."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpcompile.errors import refuse


def exported_model(
    model: Any,
    example_inputs: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic: Any = None,
) -> Any:
    """The `onnx_ir.Model` of a `torch.nn.Module` or `ExportedProgram`; its weights are the module's own tensors.

    Args:
        model: A Module in eval mode, or an ExportedProgram.
        example_inputs: A tuple (by position), a mapping (by name) or one tensor; None for an ExportedProgram.
        input_names: Names of the inputs, in order.
        output_names: Names of the outputs, in order.
        dynamic: torch's `dynamic_shapes`.

    Raises:
        Refused: TP701 a module without example inputs or in training mode; TP702 the exporter's package is missing;
            TP703 the exporter fails.
    """
    torch: Any = importlib.import_module("torch")
    name = type(model).__name__
    arguments: dict[str, Any] = {"input_names": input_names, "output_names": output_names}
    if isinstance(model, torch.nn.Module):
        if example_inputs is None:
            remedy = "Give example_inputs: a tuple, or a mapping by name, of tensors as the model takes them"
            raise refuse("TP701", name, "a torch.nn.Module is exported by running it, and there are no inputs", remedy)
        if model.training:
            raise refuse("TP701", name, "is in training mode", "Call model.eval() first")
        if isinstance(example_inputs, Mapping):
            order = [name for name in inspect.signature(model.forward).parameters if name in example_inputs]
            arguments["kwargs"] = {name: example_inputs[name] for name in order} | dict(example_inputs)
        else:
            arguments["args"] = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
        arguments["dynamic_shapes"] = dynamic
    try:
        program = torch.onnx.export(model, dynamo=True, verbose=False, **arguments)
    except ImportError as error:
        fact, remedy = f"torch's ONNX exporter cannot start: {error}", "Run `pip install 'tpcompile[torch]'`"
        raise refuse("TP702", name, fact, remedy) from error
    except Exception as error:  # the exporter wraps whatever the model raised
        cause = error.__cause__ or error
        said = next(iter(str(cause).strip().splitlines()), "")[:300]
        fact = f"torch.onnx.export fails: {type(cause).__name__}: {said}".rstrip(": .")
        remedy = "Make torch.onnx.export(model, ..., dynamo=True) work first, or give an .onnx file"
        raise refuse("TP703", name, fact, remedy) from error
    return program.model


def exported_archive(path: Path) -> Any:
    """The `onnx_ir.Model` of a `.pt2`, its weights mapped from their files.

    Raises:
        Refused: TP702 torch is not installed; TP703 its exporter fails; what `read_archive` refuses.
    """
    try:
        from tpcompile.torch.archive import read_archive, require_all
        from tpcompile.torch.tensors import fill, mapped
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        remedy = "Run `pip install 'tpcompile[torch]'`"
        raise refuse("TP702", path.name, "it is a program of torch, which is not installed", remedy) from error
    program, stored = read_archive(path)
    require_all(program, stored, path)
    fill(program, mapped(stored))
    return exported_model(program)
