"""The files of a bundle and of a source model as the checks see them: graphs parsed, tensors mapped, nothing trusted."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from tpcompile.errors import Fault, Refused, raise_all, refuse

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
                found |= {node.output[0]: attribute.t for attribute in node.attribute if attribute.name == "value"}
        return found

    def array(self, name: str) -> Array:
        """The tensor's values; mapped, not read, where they lie in a file. Refuses bytes that are not there (TP513)."""
        tensor = self.tensors[name]
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return onnx.numpy_helper.to_array(tensor)
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if self.folder is None or Path(location).name != location or (self.folder / location).is_symlink():
            raise refuse("TP513", f"{self.name}: {name}", f"its bytes lie in {location!r}, not in a file of the same folder", REWRITE)
        shape = tuple(tensor.dims)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        packed = tensor.data_type in SUB_BYTE
        size = math.prod(shape)
        needed = -(-size * SUB_BYTE[tensor.data_type] // 8) if packed else size * dtype.itemsize
        offset = int(entries.get("offset", 0))
        path = self.folder / location
        held = path.stat().st_size if path.is_file() else 0
        if offset + needed > held or int(entries.get("length", needed)) != needed:
            fact = f"it needs {needed} bytes from byte {offset} of {location}, which has {held}; its length is given as {entries.get('length')}"
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
        raise refuse("TP502", str(path), f"cannot be read as an ONNX model ({type(error).__name__})", "Give the ONNX file that was compiled with --source") from error
    return ModelFile(name or path.name, path.parent, proto)


@dataclass(frozen=True)
class Bundle:
    """A bundle's manifest (bundle.json as it stands) and the models of its ranks, by rank."""

    folder: Path
    manifest: Mapping[str, Any]
    ranks: tuple[ModelFile, ...]

    @property
    def tp(self) -> int:
        return len(self.ranks)

    def placement(self, side: str, name: str) -> Mapping[str, Any] | None:
        """What bundle.json says of an input or output; None where it is whole."""
        entry = self.manifest[side].get(name) or {}
        found: Mapping[str, Any] | None = entry.get("placement")
        return found


def open_bundle(folder: Path) -> Bundle:
    """Read bundle.json and the rank models. Refuses, with every fault at once, files that are missing or changed (TP501)."""
    path = folder / "bundle.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        files = [(entry["model"], entry["model_sha256"]) for entry in manifest["ranks"]]
        sizes = {data["file"]: data["bytes"] for entry in manifest["ranks"] for data in entry["data"]}
        _ = manifest["inputs"], manifest["outputs"], manifest["collectives"], manifest["mesh"]["tp"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise refuse("TP501", str(path), f"is missing or not a bundle's manifest ({type(error).__name__}: {error})", "Give the folder that tpcompile wrote") from error
    raise_all(_file_faults(folder, files, sizes))
    return Bundle(folder, manifest, tuple(_rank_model(folder / name, rank) for rank, (name, _) in enumerate(files)))


def _rank_model(path: Path, rank: int) -> ModelFile:
    try:
        return open_model(path, f"rank {rank}")
    except Refused as error:
        raise refuse("TP501", path.name, "is not an ONNX model", REWRITE) from error


def _file_faults(folder: Path, models: list[tuple[str, str]], sizes: Mapping[str, int]) -> Iterator[Fault]:
    for name in [*(name for name, _ in models), *sizes]:
        path = folder / name
        if Path(name).name != name or path.is_symlink() or not path.is_file():
            yield Fault("TP501", name, "is not a file in the bundle's folder", REWRITE)
            return
    for name, digest in models:
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            yield Fault("TP501", name, "is not the file that bundle.json describes: its sha256 differs", REWRITE)
    for name, size in sizes.items():
        found = (folder / name).stat().st_size
        if found != size:
            yield Fault("TP501", name, f"has {found} bytes, bundle.json says {size}", REWRITE)


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


def is_collective(node: onnx.NodeProto) -> bool:
    return node.op_type == "DistCollective" and node.domain == "tpcompile"
