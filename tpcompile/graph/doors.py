"""The kinds of model that come in, each turned into a `SourceModel`, and the way back for rank models.

An object is recognised by the module of its class, so a library is imported only when a caller already uses it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import onnx

from tpcompile.errors import refuse
from tpcompile.graph.read import SourceModel, checked, read_model
from tpcompile.graph.tensors import DTYPES
from tpcompile.weights.source import MemoryBytes, Source

if TYPE_CHECKING:
    import onnx_ir

Kind = Literal["onnx", "ir", "gs"]
Written = TypeVar("Written")

INLINE_BYTES = 1024
"""In-memory tensors up to this size are put into the message; larger ones stay where they are, uncopied."""

ACCEPTED = (
    "Give the path of an .onnx file, an onnx.ModelProto, an onnx_ir.Model, an onnx_graphsurgeon.Graph, "
    "a torch.nn.Module with example_inputs, or a torch.export.ExportedProgram"
)


def open_model(
    model: Any,
    *,
    allow_links: bool = False,
    require_data: bool = True,
    example_inputs: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic: Any = None,
) -> SourceModel:
    """Read a model of any accepted kind. The object is not changed and must not be changed while it is in use.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model`, `onnx_graphsurgeon.Graph`, `torch.nn.Module` or
            `torch.export.ExportedProgram`.
        allow_links: Follow links among external data files.
        require_data: Refuse where an external data file is missing.
        example_inputs: For a Module: a tuple (by position), a mapping (by name), or one tensor.
        input_names: For torch: names of the model's inputs, in order.
        output_names: For torch: names of the model's outputs, in order.
        dynamic: For a Module: torch's `dynamic_shapes`, as in `{"input_ids": {0: "batch", 1: "seq"}}`.

    Raises:
        Refused: TP230 for any other kind of object or for torch arguments where they mean nothing; the codes of
            `read_model` for a faulty model; TP231 for data in a folder that the object does not tell; TP701 to TP703.
    """
    kind = _kind_of(model)
    torch_arguments = {
        "example_inputs": example_inputs,
        "input_names": input_names,
        "output_names": output_names,
        "dynamic": dynamic,
    }
    given = [name for name, value in torch_arguments.items() if value is not None]
    useless = [] if kind == "module" else [n for n in given if kind != "exported" or n in ("example_inputs", "dynamic")]
    if kind != "unknown" and useless:
        fact = f"{' and '.join(useless)} given with {_described(model)}"
        raise refuse("TP230", "", fact, "These say how to export a torch.nn.Module: leave them out here")
    match kind:
        case "path" if Path(model).suffix == ".pt2":
            from tpcompile.torch.export import exported_archive

            return _from_ir(exported_archive(Path(model)), Path(model).name, allow_links, require_data)
        case "path":
            return read_model(model, allow_links=allow_links, require_data=require_data)
        case "onnx":
            return checked(model, folder=None, file="the ModelProto", own_bytes=None)
        case "ir":
            return _from_ir(model, "the onnx_ir.Model", allow_links, require_data)
        case "gs":
            return _from_gs(model)
        case "module" | "exported":
            from tpcompile.torch.export import exported_model

            made = exported_model(model, example_inputs, input_names, output_names, dynamic)
            return _from_ir(made, f"the {type(model).__name__}", allow_links, require_data)
    raise refuse("TP230", "", f"{_described(model)} is no model that tpcompile knows", ACCEPTED)


def to_kind(proto: onnx.ModelProto, kind: Kind, folder: Path) -> Any:
    """A rank's model as `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`.

    Args:
        proto: The model, with its weights in files of `folder`.
        kind: "onnx": as it is, weights named by file; "ir": weights mapped from the folder when used; "gs": weights
            loaded, because graphsurgeon would look for their files in the current directory. graphsurgeon keeps
            neither metadata nor quantization annotations.
        folder: Where the weights' files lie.

    Raises:
        Refused: TP230 for another kind, TP232 where onnx_graphsurgeon is not installed.
    """
    if kind == "onnx":
        return proto
    if kind == "ir":
        import onnx_ir
        import onnx_ir.external_data

        model = onnx_ir.serde.deserialize_model(proto)
        onnx_ir.external_data.set_base_dir(model.graph, folder)
        return model
    if kind == "gs":
        return _to_gs(proto, folder)
    raise refuse("TP230", "", f"{kind!r} is no kind of model to hand out", 'Use "onnx", "ir" or "gs"')


def _kind_of(model: Any) -> str:
    if isinstance(model, str | Path):
        return "path"
    if isinstance(model, onnx.ModelProto):
        return "onnx"
    names = {f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(model).__mro__}
    for name, kind in (
        ("onnx_ir.Model", "ir"),
        ("onnx_graphsurgeon.Graph", "gs"),
        ("torch.Module", "module"),
        ("torch.ExportedProgram", "exported"),
    ):
        if name in names:
            return kind
    return "unknown"


def _described(model: Any) -> str:
    kind = type(model)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"an object of type {name}"


def _from_ir(model: onnx_ir.Model, file: str, allow_links: bool, require_data: bool) -> SourceModel:
    """Serialize the graph alone: large tensors in memory are pointed at, tensors in files stay there."""
    import onnx_ir

    copy = _written(model.clone, file)
    places: dict[tuple[str, int, int | None], Source] = {}
    folders: set[Path] = set()
    values = [value for graph in copy.graphs() for value in graph.initializers.values()]
    for value in values:
        tensor = value.const_value
        if isinstance(tensor, onnx_ir.ExternalTensor):
            folders.add(Path(tensor.base_dir).absolute())
        elif tensor is not None and tensor.nbytes > INLINE_BYTES and tensor.dtype.value in DTYPES:
            location = f"memory {len(places)}"
            shape = onnx_ir.Shape(tensor.shape.numpy())
            value.const_value = onnx_ir.ExternalTensor(
                location, 0, tensor.nbytes, tensor.dtype, shape=shape, name=value.name or ""
            )
            places[location, 0, tensor.nbytes] = MemoryBytes(_flat_bytes(tensor))
    if len(folders) > 1:
        shown = ", ".join(sorted(str(folder) for folder in folders))
        fact = f"its weights lie in files of {len(folders)} folders: {shown}"
        raise refuse("TP231", file, fact, "Save the model to one folder and give its path")
    proto = _written(lambda: onnx_ir.serde.serialize_model(copy), file)
    folder = folders.pop() if folders else None
    return checked(
        proto,
        folder=folder,
        file=file,
        own_bytes=None,
        allow_links=allow_links,
        require_data=require_data,
        places=places,
    )


def _written(write: Callable[[], Written], file: str) -> Written:
    """What onnx_ir makes of a model, or a refusal with the innermost reason why it cannot."""
    try:
        return write()
    except Exception as error:  # onnx_ir raises several kinds for an unsound model, each wrapped in others
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        said = next(iter(str(cause).strip().splitlines()), "")[:200]
        fact = f"onnx_ir cannot write it: {type(cause).__name__}: {said}".rstrip(": .")
        raise refuse("TP231", file, fact, "Check it with onnx_ir.passes.common.CheckerPass, or give a path") from error


def _flat_bytes(tensor: onnx_ir.TensorProtocol) -> bytes | memoryview:
    """The tensor's bytes as ONNX stores them: seen in place where they lie so already."""
    if DTYPES[tensor.dtype.value][1] < 8:
        return tensor.tobytes()  # packed
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data


def _from_gs(graph: Any) -> SourceModel:
    onnx_graphsurgeon: Any = importlib.import_module("onnx_graphsurgeon")
    file = "the onnx_graphsurgeon.Graph"
    try:
        proto: onnx.ModelProto = onnx_graphsurgeon.export_onnx(graph)
    except Exception as error:  # graphsurgeon raises several kinds for what it cannot write
        fact = f"onnx_graphsurgeon cannot export it: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        raise refuse("TP231", file, fact, "Give the model's path or its onnx.ModelProto") from error
    for tensor in proto.graph.initializer:
        # A constant whose values were read keeps its "external" mark beside the data it then holds.
        if tensor.data_location == onnx.TensorProto.EXTERNAL and not tensor.external_data:
            tensor.ClearField("data_location")
    return checked(proto, folder=None, file=file, own_bytes=None)


def _to_gs(proto: onnx.ModelProto, folder: Path) -> Any:
    try:
        onnx_graphsurgeon: Any = importlib.import_module("onnx_graphsurgeon")
        misc: Any = importlib.import_module("onnx_graphsurgeon.util.misc")
    except ImportError:
        fact, remedy = "onnx_graphsurgeon is not installed", "Run `pip install 'tpcompile[gs]'`"
        raise refuse("TP232", "", fact, remedy) from None
    loaded = onnx.ModelProto()
    loaded.CopyFrom(proto)
    onnx.load_external_data_for_model(loaded, str(folder))
    graph = onnx_graphsurgeon.import_onnx(loaded)
    ints = misc.convert_from_onnx_attr_type(onnx.AttributeProto.INTS)
    for node in graph.nodes:
        for name, value in node.attrs.items():
            if value == [] and isinstance(value, list):
                # Its exporter cannot tell the type of an empty list; a reference to no name says it.
                node.attrs[name] = onnx_graphsurgeon.Node.AttributeRef("", ints)
    return graph
