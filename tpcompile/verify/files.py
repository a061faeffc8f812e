"""A bundle's and a source model's files as the checks see them: graphs parsed, tensors mapped, nothing trusted."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tpcompile.bundle.manifest import Manifest, Placement
from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.graph.read import SourceModel, read_model
from tpcompile.graph.scopes import subgraphs
from tpcompile.verify.branches import graphs, make_names_unique, walk
from tpcompile.weights.source import FileBytes, Source

Array = np.ndarray[Any, np.dtype[Any]]

REWRITE = "Compile the model again, or copy the bundle again from where it was made"


SUB_BYTE = {
    getattr(onnx.TensorProto, name): bits
    for name, bits in (("INT4", 4), ("UINT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2))
    if hasattr(onnx.TensorProto, name)
}


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """How many bytes a tensor's values take, sub-byte types packed."""
    bits = SUB_BYTE.get(tensor.data_type) or 8 * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(-(-math.prod(tensor.dims) * bits // 8))


@dataclass(frozen=True)
class ModelFile:
    """A model whose external data stays in its files; no two of its values have one name (`make_names_unique`).

    `folder` is None where the model never lay on a disk; `places` say where the bytes of tensors lie that were found
    elsewhere (a source behind links, or in memory); all others must lie in regular files of the folder.
    """

    name: str
    folder: Path | None
    proto: onnx.ModelProto
    places: Mapping[str, Source] = field(default_factory=dict)

    @property
    def graph(self) -> onnx.GraphProto:
        return self.proto.graph

    @cached_property
    def tensors(self) -> dict[str, onnx.TensorProto]:
        """Stored tensors by name, of branches too: initializers, and Constant nodes by the name of their output."""
        found = {tensor.name: tensor for held in graphs(self.graph) for tensor in held.initializer}
        for node in walk(self.graph):
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                found.update((node.output[0], entry.t) for entry in node.attribute if entry.name == "value")
        return found

    @cached_property
    def inner(self) -> frozenset[str]:
        """Names of stored tensors that stand in branches and bodies."""
        main = {tensor.name for tensor in self.graph.initializer} | {n for node in self.graph.node for n in node.output}
        return frozenset(name for name in self.tensors if name not in main)

    def array(self, name: str) -> Array:
        """The tensor's values; mapped, not read, where they lie in a file. Refuses bytes that are not there (TP513)."""
        tensor = self.tensors[name]
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return onnx.numpy_helper.to_array(tensor)
        place = self.places.get(name) or self._own_place(tensor)
        dtype, shape = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)), tuple(tensor.dims)
        if tensor.data_type not in SUB_BYTE and isinstance(place, FileBytes) and place.nbytes:
            return np.memmap(place.path, dtype=dtype, mode="r", offset=place.offset, shape=shape)
        if isinstance(place, FileBytes):
            with place.path.open("rb") as stream:
                stream.seek(place.offset)
                data = stream.read(place.nbytes)
        else:
            data = bytes(place.data)
        return onnx.numpy_helper.to_array(onnx.TensorProto(dims=shape, data_type=tensor.data_type, raw_data=data))

    def _own_place(self, tensor: onnx.TensorProto) -> FileBytes:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if self.folder is None or Path(location).name != location or (self.folder / location).is_symlink():
            fact = f"its bytes lie in {location!r}, not in a file of the same folder"
            raise refuse("TP513", f"{self.name}: {tensor.name}", fact, REWRITE)
        needed = tensor_bytes(tensor)
        offset, path = int(entries.get("offset", 0)), self.folder / location
        held = path.stat().st_size if path.is_file() else 0
        if offset + needed > held or int(entries.get("length", needed)) != needed:
            fact = (
                f"needs {needed} bytes (given: {entries.get('length')}) from {offset} of {location}, which has {held}"
            )
            raise refuse("TP513", f"{self.name}: {tensor.name}", fact, REWRITE)
        return FileBytes(path, offset, needed)


def open_source(model: Path | str | onnx.ModelProto | SourceModel, allow_links: bool = False) -> ModelFile:
    """The source model, refused as the compiler refuses it (TP2xx)."""
    if isinstance(model, onnx.ModelProto):
        return ModelFile("the source model", None, _with_unique_names(model))
    found = model if isinstance(model, SourceModel) else read_model(model, allow_links=allow_links)
    return ModelFile(found.file, found.folder, _with_unique_names(found.proto), found.external)


def _with_unique_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or a copy of it where names had to change."""
    if not any(True for node in model.graph.node for _ in subgraphs(node)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    make_names_unique(copy.graph)
    return copy


def open_rank(path: Path, rank: int) -> ModelFile:
    """The model of one rank. Refuses (TP501) what is no ONNX model."""
    try:
        proto = onnx.load(path, load_external_data=False)
    except (OSError, DecodeError, ValueError) as error:
        raise refuse("TP501", path.name, f"is not an ONNX model ({type(error).__name__})", REWRITE) from error
    make_names_unique(proto.graph)
    return ModelFile(f"rank {rank}", path.parent, proto)


@dataclass(frozen=True)
class Bundle:
    """A bundle's manifest and the models of its ranks, by rank."""

    folder: Path
    manifest: Manifest
    ranks: tuple[ModelFile, ...]

    @property
    def tp(self) -> int:
        return len(self.ranks)

    @cached_property
    def declared(self) -> list[dict[str, Any]]:
        """How named values lie, as each rank's file says under the metadata key `tpcompile.placements`."""
        texts = [
            [entry.value for entry in model.graph.metadata_props if entry.key == "tpcompile.placements"]
            for model in self.ranks
        ]
        try:
            return [dict(json.loads(found[0])) if found else {} for found in texts]
        except (ValueError, TypeError) as error:
            fact = f"says how its values lie in what is no JSON ({error})"
            raise refuse("TP501", str(self.folder), fact, REWRITE) from error

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
    return Bundle(folder, manifest, tuple(open_rank(folder / entry.model, entry.rank) for entry in manifest.ranks))


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """An attribute's value, strings decoded; `default` where the node lacks it."""
    for entry in node.attribute:
        if entry.name == name:
            value = onnx.helper.get_attribute_value(entry)
            return value.decode() if isinstance(value, bytes) else value
    return default
