"""Reading a model: what it is made of, without its weights' bytes, or a refusal that says what is wrong with it."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.graph.check_graph import graph_faults
from tpcompile.graph.check_tensors import length_faults, shape_faults, type_faults
from tpcompile.graph.contents import Held, held_tensors
from tpcompile.graph.external import Place, find_data, place_of
from tpcompile.graph.sniff import HEAD_BYTES, looks_like
from tpcompile.graph.tensors import DTYPES, inline_bytes, stored_bytes
from tpcompile.targets.collectives import OP_TYPE, is_ort_collective
from tpcompile.weights.source import MemoryBytes, Source

OLDEST_OPSET = 11
OLDEST_IR = 3
SHOWN_FAULTS = 20
"""Faults of one kind that a refusal lists; of the others it says how many they are."""


@dataclass(frozen=True)
class SourceModel:
    """A model as it came, found sound.

    Attributes:
        proto: The model; weights that came inside the file are still in it, others are only named. Never changed.
        folder: Where the model and its data lie, absolute; None for a model that came as an object.
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

    def bytes_of(self, tensor: TensorProto) -> Source:
        """Where a tensor's bytes lie: in a file, or in memory where they came inside the message."""
        if tensor.data_location == TensorProto.EXTERNAL:
            return self.places[place_of(tensor)]
        return MemoryBytes(inline_bytes(tensor))


def read_model(path: Path | str, *, allow_links: bool = False, require_data: bool = True) -> SourceModel:
    """Read an ONNX file, check it, and find (not read) the data of its weights.

    Args:
        path: The .onnx file. Where it is a link itself, it is followed: it was named by the caller.
        allow_links: Follow links among the external data files too.
        require_data: Refuse where an external data file is missing; False is enough for a plan.

    Raises:
        Refused: with all faults of the first kind of check that fails: TP201 to TP221.
    """
    path = Path(path)
    proto = _parse(path, _content(path))
    return checked(
        proto,
        folder=path.parent.absolute(),
        file=path.name,
        own_bytes=path.stat().st_size,
        allow_links=allow_links,
        require_data=require_data,
    )


def checked(
    proto: onnx.ModelProto,
    *,
    folder: Path | None,
    file: str,
    own_bytes: int | None,
    allow_links: bool = False,
    require_data: bool = True,
    places: Mapping[Place, Source] | None = None,
) -> SourceModel:
    """A model that was found sound, with the data of its weights found.

    Args:
        proto: The model, from wherever.
        folder: Where external data lies; None where that is not known.
        file: How messages speak of the model.
        own_bytes: Size of the model's file; None for an object: its inline tensors count.
        allow_links: Follow links among the external data files.
        require_data: Refuse where an external data file is missing.
        places: Data that is known already (in memory), looked up before the folder.

    Raises:
        Refused: with all faults of the first kind of check that fails.
    """
    _raise(_header_faults(proto, file))
    held = held_tensors(proto)
    _raise(type_faults(held, _inputs(proto), proto.graph.output))
    _raise(shape_faults(held))
    _raise(length_faults(held))
    _raise(_attribute_data_faults(held))
    places = dict(places or {})
    outside = [item for item in held if item.tensor.data_location == TensorProto.EXTERNAL]
    places |= _find([item for item in outside if not _known(item.tensor, places)], folder, allow_links, require_data)
    _raise(graph_faults(proto))
    weights = [tensor for tensor in proto.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    external = {tensor.name: places[place_of(tensor)] for tensor in weights}
    if own_bytes is None:
        inline = (item.tensor for item in held if item.tensor.data_location != TensorProto.EXTERNAL)
        own_bytes = sum(stored_bytes(t.data_type, t.dims) for t in inline if t.data_type in DTYPES)
    nbytes = own_bytes + sum(source.nbytes for source in places.values())
    return SourceModel(proto, folder, file, nbytes, external, places)


def _content(path: Path) -> bytes:
    """The bytes of a file that may be an ONNX model."""
    give = "Give the path of an .onnx file"
    try:
        facts = path.stat()
        if stat.S_ISDIR(facts.st_mode):
            raise _folder(path)
        if not stat.S_ISREG(facts.st_mode):
            raise refuse("TP201", str(path), "is no regular file", give)
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
            if found := looks_like(path, head):
                raise refuse("TP202", str(path), f"is {found[0]}, not an ONNX model", found[1])
            if facts.st_size >= 2**31:
                fact = f"has {facts.st_size} bytes, and an ONNX file ends below 2 GiB"
                raise refuse("TP202", str(path), fact, "Give the .onnx file; larger weights lie in a file beside it")
            return head + stream.read()
    except FileNotFoundError:
        raise refuse("TP201", str(path), "there is no such file", give) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise refuse("TP201", str(path), f"cannot be read: {reason}", give) from None


def _folder(path: Path) -> Exception:
    names = sorted(entry.name for entry in path.iterdir() if entry.suffix == ".onnx")
    if not names:
        return refuse("TP204", str(path), "is a folder without an .onnx file", "Give the path of an .onnx file")
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return refuse("TP204", str(path), f"is a folder; it holds {shown}", f"Give the file, as in {path / names[0]}")


def _parse(path: Path, content: bytes) -> onnx.ModelProto:
    again = "Copy or export it again; if it is no ONNX model, export one"
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        fact = f"is damaged, breaks off, or is no ONNX model ({len(content)} bytes)"
        raise refuse("TP203", str(path), fact, again) from None
    if not proto.HasField("ir_version") or not proto.HasField("graph"):
        lacks = "graph" if proto.HasField("ir_version") else "IR version"
        raise refuse("TP203", str(path), f"has no {lacks}: it breaks off or is no ONNX model", again)
    return proto


def _header_faults(proto: onnx.ModelProto, file: str) -> list[Fault]:
    """What the model says of itself: versions, training parts, outputs, sparse weights."""
    faults = []
    if proto.ir_version > onnx.IR_VERSION:
        newest = f"newer than {onnx.IR_VERSION}, the newest of the installed onnx {onnx.__version__}"
        fact = f"is of IR version {proto.ir_version}, {newest}"
        faults.append(Fault("TP206", file, fact, "Install a newer onnx, or export with an older one"))
    elif proto.ir_version < OLDEST_IR:
        fact = f"is of IR version {proto.ir_version}, older than {OLDEST_IR}"
        faults.append(Fault("TP205", file, fact, "Export it again with opset 17 or newer"))
    faults += _opset_faults(proto, file)
    for function in proto.functions:
        faults += _opset_faults(function, f"function {function.domain}.{function.name}")
    if proto.training_info:
        fact = "holds training steps (training_info)"
        faults.append(Fault("TP207", file, fact, "Export it for inference, or clear the field training_info"))
    joint = [node.op_type for node in proto.graph.node if node.op_type == OP_TYPE or is_ort_collective(node)]
    if joint:
        fact = f"holds {joint[0]} nodes: it is one rank's part of a model that was compiled already"
        faults.append(Fault("TP222", file, fact, "Give the model that it was compiled from"))
    if not proto.graph.output:
        faults.append(Fault("TP208", file, "its graph has no outputs", "Export it again; it may break off here"))
    if proto.graph.sparse_initializer:
        name = proto.graph.sparse_initializer[0].values.name
        fact = f"stores {len(proto.graph.sparse_initializer)} weights as sparse tensors (first: {name})"
        faults.append(
            Fault("TP210", file, fact, "Save them as dense tensors (numpy, then onnx.numpy_helper.from_array)")
        )
    return faults


def _opset_faults(owner: onnx.ModelProto | onnx.FunctionProto, where: str) -> list[Fault]:
    faults = []
    newest = onnx.defs.onnx_opset_version()
    found = [entry.version for entry in owner.opset_import if entry.domain in ("", "ai.onnx")]
    if not found and isinstance(owner, onnx.ModelProto):
        fact = "imports no version of the ONNX operators (opset); it may break off here"
        faults.append(Fault("TP205", where, fact, "Export it again with opset 17 or newer"))
    for version in found:
        if version < OLDEST_OPSET:
            fact = f"opset {version} is older than {OLDEST_OPSET}"
            faults.append(Fault("TP205", where, fact, "Export again with opset 17 or newer"))
        elif version > newest:
            fact = f"opset {version} is newer than {newest}, the newest of the installed onnx {onnx.__version__}"
            faults.append(Fault("TP206", where, fact, f"Install a newer onnx, or export with opset {newest} or older"))
    return faults


def _inputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    weights = {tensor.name for tensor in proto.graph.initializer}
    return [value for value in proto.graph.input if value.name not in weights]


def _attribute_data_faults(held: Iterable[Held]) -> list[Fault]:
    fact, remedy = "keeps the tensor of an attribute outside the file", "Save the model with that tensor inside"
    outside = [item for item in held if item.tensor.data_location == TensorProto.EXTERNAL]
    return [Fault("TP213", item.where, fact, remedy) for item in outside if item.role == "attribute"]


def _known(tensor: TensorProto, places: Mapping[Place, Source]) -> bool:
    try:
        return place_of(tensor) in places
    except ValueError:
        return False


def _find(outside: list[Held], folder: Path | None, allow_links: bool, require_data: bool) -> dict[Place, Source]:
    if folder is None and outside:
        where = outside[0].where if len(outside) == 1 else f"{outside[0].where} and {len(outside) - 1} more"
        fact = "its data lies in a file, and a model given as an object does not know in which folder"
        raise refuse("TP231", where, fact, "Give the path of the model, or load its data first (onnx.load does)")
    return find_data(outside, folder or Path(), allow_links, require_data)


def _raise(faults: list[Fault]) -> None:
    shown = faults[:SHOWN_FAULTS]
    if len(faults) > SHOWN_FAULTS:
        last = faults[-1]
        shown.append(Fault(last.code, "", f"there are {len(faults) - SHOWN_FAULTS} more such faults", last.remedy))
    raise_all(shown)
