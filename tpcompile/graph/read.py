"""Reading a model: what it is made of, without its weights' bytes, or a refusal that says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from tpcompile.graph.tensors import inline_bytes, stored_bytes
from tpcompile.weights.source import FileBytes, MemoryBytes, Source

Place = tuple[str, int, int | None]
"""How a tensor names its data: location, offset, length (None where it does not say)."""


@dataclass(frozen=True)
class SourceModel:
    """A model as it came.

    Attributes:
        proto: The model; weights that came inside the file are still in it, others are only named.
        folder: Where the model and its data lie; None for a model that came as an object.
        file: The name of the file, or of the kind of object.
        nbytes: Bytes of the file and of the external data it names.
        external: For each initializer of the main graph with data outside the message, where its bytes lie.
        places: The same for every tensor of the model, by what the tensor says of its data.
    """

    proto: onnx.ModelProto
    folder: Path | None
    file: str
    nbytes: int
    external: Mapping[str, Source] = field(default_factory=dict)
    places: Mapping[Place, Source] = field(default_factory=dict)

    def bytes_of(self, tensor: onnx.TensorProto) -> Source:
        """Where a tensor's bytes lie: in a file, or in memory where they came inside the message."""
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            return self.places[place_of(tensor)]
        return MemoryBytes(inline_bytes(tensor))


def place_of(tensor: onnx.TensorProto) -> Place:
    """What a tensor with external data says of it."""
    said = {entry.key: entry.value for entry in tensor.external_data}
    length = said.get("length")
    return said.get("location", ""), int(said.get("offset", "0")), None if length is None else int(length)


def read_model(path: Path, *, allow_links: bool = False, require_data: bool = True) -> SourceModel:
    """Read an ONNX file without the bytes of its external weights."""
    proto = onnx.load(str(path), load_external_data=False)
    external: dict[str, Source] = {}
    places: dict[Place, Source] = {}
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            place = place_of(tensor)
            need = stored_bytes(tensor.data_type, tensor.dims)
            places[place] = external[tensor.name] = FileBytes(path.parent.absolute() / place[0], place[1], need)
    nbytes = path.stat().st_size + sum(source.nbytes for source in places.values())
    return SourceModel(proto, path.parent.absolute(), path.name, nbytes, external, places)
