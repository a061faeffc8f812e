"""PyTorch models as exported programs that the compiler reads: captured, without mutation, weights where they lie."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tpcompile.errors import refuse
from tpcompile.torch.archive import read_archive, require_all
from tpcompile.torch.from_aten import symbols_of
from tpcompile.torch.prepare import prepared
from tpcompile.torch.tensors import source_of
from tpcompile.weights.source import Source


@dataclass(frozen=True)
class Captured:
    """A model as the compiler takes it.

    `file` is what people call it; `sources` holds the bytes of every parameter, buffer and constant by its full name;
    `tied` names parameters that are another one; `names` what people call a symbol.
    """

    file: str
    program: torch.export.ExportedProgram
    sources: Mapping[str, Source]
    tied: Mapping[str, str]
    names: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored, what is tied once."""
        return sum(source.nbytes for name, source in self.sources.items() if name not in self.tied)


def capture(model: Any, example_inputs: Any = None, dynamic: Any = None) -> Captured:
    """Take a model in.

    Args:
        model: a `torch.nn.Module` (a GraphModule is one) in the mode it is to run in, an ExportedProgram, or the path
            of a `.pt2`.
        example_inputs: for a Module: a tuple (by position), a mapping (by name), or one tensor.
        dynamic: for a Module: torch's `dynamic_shapes`, as in `{"input_ids": {0: "batch", 1: "seq"}}`.

    Raises:
        Refused: TP230 another kind of object; TP701 a module without example inputs; TP720 torch.export fails; TP721
            sizes that depend on data; what `read_archive` refuses.
    """
    if isinstance(model, str | Path):
        return _from_archive(Path(model))
    name = type(model).__name__
    if isinstance(model, torch.export.ExportedProgram):
        program = model
    elif isinstance(model, torch.nn.Module):
        if example_inputs is None:
            remedy = "Give example_inputs: a tuple, or a mapping by name, of tensors as the model takes them"
            raise refuse("TP701", name, "a torch.nn.Module is exported by running it, and there are no inputs", remedy)
        program = _exported(model, name, example_inputs, dynamic)
    else:
        kind = f"{type(model).__module__}.{name}".removeprefix("builtins.")
        remedy = "Give a torch.nn.Module with example_inputs, a torch.export.ExportedProgram or the path of a .pt2"
        raise refuse("TP230", "", f"an object of type {kind} is no PyTorch model", remedy)
    tensors = program.state_dict | {k: v for k, v in program.constants.items() if isinstance(v, torch.Tensor)}
    places = {
        key: (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        for key, tensor in tensors.items()
        if tensor.numel()
    }
    sources: dict[str, Source] = {key: source_of(tensor) for key, tensor in tensors.items()}
    return Captured(name, prepared(program), sources, _tied(places), _names(program, dynamic, model))


def _tied(places: Mapping[str, object]) -> dict[str, str]:
    """The names of what lies where another name's tensor lies: name → the first of that place."""
    first: dict[object, str] = {}
    return {name: first[place] for name, place in places.items() if first.setdefault(place, name) != name}


def _from_archive(path: Path) -> Captured:
    """Weights stay in their files."""
    program, stored = read_archive(path)
    require_all(program, stored, path)
    places = {name: (found.source, found.dtype, found.shape) for name, found in stored.items() if found.source.nbytes}
    sources = {name: found.source for name, found in stored.items()}
    return Captured(path.name, prepared(program), sources, _tied(places), {})


def _exported(model: torch.nn.Module, name: str, example_inputs: Any, dynamic: Any) -> torch.export.ExportedProgram:
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(example_inputs, Mapping):
        order = [key for key in inspect.signature(model.forward).parameters if key in example_inputs]
        kwargs = {key: example_inputs[key] for key in order} | dict(example_inputs)
    else:
        args = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    try:
        return torch.export.export(model, args, kwargs, dynamic_shapes=_dims(dynamic), strict=False)
    except Exception as error:  # the exporter raises many kinds, and what the model itself raises
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = " ".join(lines[: 2 if "Constraints violated" in str(error) else 1])[:300]  # which one stands behind
        kind = type(error).__name__
        if "DataDependent" in kind or "data-dependent" in str(error):
            fact = f"its graph depends on the content of a tensor: {said}"
            remedy = (
                "Write it without .item(), boolean masks and branches on tensors, or bound the size with torch._check"
            )
            raise refuse("TP721", name, fact, remedy) from error
        fact = f"torch.export.export fails: {kind}: {said}".rstrip(": .")
        raise refuse("TP720", name, fact, "Make torch.export.export(model, ...) work first") from error


def _dims(dynamic: Any) -> Any:
    """`dynamic_shapes` with names made the dimensions that torch.export wants; torch.onnx takes names as they are."""
    made: dict[str, Any] = {}

    def dim(size: Any) -> Any:
        return made.setdefault(size, torch.export.Dim(size)) if isinstance(size, str) else size

    def shape(sizes: Any) -> Any:
        if isinstance(sizes, dict):
            return {axis: dim(size) for axis, size in sizes.items()}
        return None if sizes is None else type(sizes)(dim(size) for size in sizes)

    return torch.utils._pytree.tree_map(shape, dynamic, is_leaf=_is_shape)


def _names(program: torch.export.ExportedProgram, dynamic: Any, model: Any) -> dict[str, str]:
    """What the user calls each symbol: the names in `dynamic_shapes`, by input and axis."""
    named: dict[tuple[str, int], str] = {}
    if isinstance(dynamic, tuple | list) and isinstance(model, torch.nn.Module):
        dynamic = dict(zip(inspect.signature(model.forward).parameters, dynamic, strict=False))
    for path, shape in torch.utils._pytree.tree_flatten_with_path(dynamic, is_leaf=_is_shape)[0]:
        key = "_".join(str(getattr(part, "key", getattr(part, "idx", ""))) for part in path)
        for axis, dim in shape.items() if isinstance(shape, dict) else enumerate(shape or ()):
            name = dim if isinstance(dim, str) else getattr(dim, "__name__", None)
            if isinstance(name, str):
                named[key, axis] = name
    found: dict[str, str] = {}
    for symbol, placeholder, axis in symbols_of(program.graph):
        name = named.get((placeholder, axis))
        if name is not None and name not in found.values():
            found.setdefault(symbol, name)
    return found


def _is_shape(value: Any) -> bool:
    """Whether a part of `dynamic_shapes` is that of one tensor."""
    if value is None:
        return True
    if isinstance(value, dict):
        return all(isinstance(key, int) for key in value)
    return isinstance(value, tuple | list) and not any(isinstance(each, dict | tuple | list) for each in value)
