"""A bundle's and a source model's files as the checks see them: graphs parsed, tensors mapped, nothing trusted."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tpcompile.bundle.manifest import Manifest, Placement
from tpcompile.errors import Fault, raise_all, refuse

Array = np.ndarray[Any, np.dtype[Any]]

REWRITE = "Compile the model again, or copy the bundle again from where it was made"


@dataclass(frozen=True)
class ModelFile:
    """A model whose external data stays in its files; `folder` is None where the model never lay on a disk."""

    name: str
    folder: Path | None
    proto: onnx.ModelProto

    @property
    def graph(self) -> onnx.GraphProto:
        return self.proto.graph

    @cached_property
    def tensors(self) -> dict[str, onnx.TensorProto]:
        """Stored tensors by name: initializers, and Constant nodes under the name of their output."""
        found = {tensor.name: tensor for tensor in self.graph.initializer}
        for node in self.graph.node:
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                found.update((node.output[0], entry.t) for entry in node.attribute if entry.name == "value")
        return found

    def array(self, name: str) -> Array:
        """The tensor's values; mapped, not read, where they lie in a file. Refuses bytes that are not there (TP513)."""
        tensor = self.tensors[name]
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return onnx.numpy_helper.to_array(tensor)
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if self.folder is None or Path(location).name != location or (self.folder / location).is_symlink():
            raise refuse(
                "TP513",
                f"{self.name}: {name}",
                f"its bytes lie in {location!r}, not in a file of the same folder",
                REWRITE,
            )
        shape = tuple(tensor.dims)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        packed = tensor.data_type in SUB_BYTE
        size = math.prod(shape)
        needed = -(-size * SUB_BYTE[tensor.data_type] // 8) if packed else size * dtype.itemsize
        offset = int(entries.get("offset", 0))
        path = self.folder / location
        held = path.stat().st_size if path.is_file() else 0
        if offset + needed > held or int(entries.get("length", needed)) != needed:
            fact = f"needs {needed} bytes (given: {entries.get('length')}) from {offset} of {location}, which has {held}"
            raise refuse("TP513", f"{self.name}: {name}", fact, REWRITE)
        if size == 0:
            return np.zeros(shape, dtype)
        if not packed:
            return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
        copy = onnx.TensorProto(dims=shape, data_type=tensor.data_type)
        with path.open("rb") as stream:
            stream.seek(offset)
            copy.raw_data = stream.read(needed)
        return onnx.numpy_helper.to_array(copy)


SUB_BYTE = {
    getattr(onnx.TensorProto, name): bits
    for name, bits in (("INT4", 4), ("UINT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2))
    if hasattr(onnx.TensorProto, name)
}


def open_model(model: Path | str | onnx.ModelProto, name: str | None = None) -> ModelFile:
    """Parse a model without its external data. Refuses what is no ONNX file (TP502)."""
    if isinstance(model, onnx.ModelProto):
        return ModelFile(name or "the source model", None, model)
    path = Path(model)
    try:
        proto = onnx.load(path, load_external_data=False)
    except (OSError, DecodeError, ValueError) as error:
        raise refuse(
            "TP502",
            str(path),
            f"cannot be read as an ONNX model ({type(error).__name__})",
            "Give the ONNX file that was compiled with --source",
        ) from error
    return ModelFile(name or path.name, path.parent, proto)


@dataclass(frozen=True)
class Bundle:
    """A bundle's manifest and the models of its ranks, by rank."""

    folder: Path
    manifest: Manifest
    ranks: tuple[ModelFile, ...]

    @property
    def tp(self) -> int:
        return len(self.ranks)

    def placement(self, side: str, name: str) -> Placement | None:
        """What bundle.json says of a value of "inputs" or "outputs"; None where it is whole."""
        entry = (self.manifest.inputs if side == "inputs" else self.manifest.outputs).get(name)
        return entry.placement if entry else None


def open_bundle(folder: Path) -> Bundle:
    """Read bundle.json and the rank models. Refuses as `Manifest.read` does (TP45x); changed models (TP501)."""
    manifest = Manifest.read(folder)
    raise_all(
        Fault("TP501", entry.model, "is not the file that bundle.json describes: its sha256 differs", REWRITE)
        for entry in manifest.ranks
        if hashlib.sha256((folder / entry.model).read_bytes()).hexdigest() != entry.model_sha256
    )
    return Bundle(
        folder, manifest, tuple(open_model(folder / entry.model, f"rank {entry.rank}") for entry in manifest.ranks)
    )


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """An attribute's value, strings decoded; `default` where the node lacks it."""
    for entry in node.attribute:
        if entry.name == name:
            value = onnx.helper.get_attribute_value(entry)
            return value.decode() if isinstance(value, bytes) else value
    return default


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies of an If, Loop or Scan."""
    for entry in node.attribute:
        if entry.type == onnx.AttributeProto.GRAPH:
            yield entry.g
        yield from entry.graphs


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Every name a node reads, those its subgraphs take from outside included."""
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        local = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        for inner in graph.node:
            yield from (name for name in reads(inner) if name not in local)
            local |= set(inner.output)
        yield from (value.name for value in graph.output if value.name not in local)
