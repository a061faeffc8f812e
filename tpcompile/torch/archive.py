"""`.pt2` archives of torch.export, read as what they are: a zip of JSON and raw bytes. Nothing in them is unpickled.

`torch.export.load` unpickles sample inputs, and weights of some kinds; it evaluates and imports what the JSON names.
Here sample inputs are not read, pickled weights are refused, and the JSON is checked before torch makes a program of
it. Weights are not read but found: a byte range each, in the archive or in a safetensors file beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._export.serde import schema
from torch._export.serde.serialize import (
    _SERIALIZE_TO_TORCH_DTYPE,
    ExportedProgramDeserializer,
    _dict_to_dataclass,
    serialize,
)
from torch.export import ExportedProgram
from torch.export.pt2_archive import PT2ArchiveWriter
from torch.export.pt2_archive.constants import (
    CONSTANTS_CONFIG_FILENAME_FORMAT,
    CONSTANTS_DIR,
    MODELS_DIR,
    MODELS_FILENAME_FORMAT,
    SAMPLE_INPUTS_FILENAME_FORMAT,
    WEIGHTS_CONFIG_FILENAME_FORMAT,
    WEIGHTS_DIR,
)

from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.torch import collectives as _collectives  # noqa: F401 - registers operators that programs may hold
from tpcompile.torch import cross_entropy as _cross_entropy  # noqa: F401 - likewise
from tpcompile.torch import noise as _noise  # noqa: F401 - likewise
from tpcompile.torch.graph_json import check_form, check_program
from tpcompile.torch.tensors import held_by, name_of
from tpcompile.torch.zip_members import members_of, read_member
from tpcompile.weights import safetensors
from tpcompile.weights.safetensors import Stored
from tpcompile.weights.source import FileBytes, MemoryBytes

AGAIN = "Save it again with torch.export.save, or copy the file again"


def read_archive(
    path: Path | str, weights: Path | str | Mapping[str, Stored] | None = None, namespaces: Iterable[str] = ()
) -> tuple[ExportedProgram, dict[str, Stored]]:
    """The program in a `.pt2` file, its tensors on the meta device, and where these lie, by name.

    Args:
        path: the archive.
        weights: a safetensors file with the tensors that the archive does not hold, or where they lie, by name;
            None: the file of the same name beside it, if there is one.
        namespaces: of operators that may stand in the graph beside aten's; import what defines them before.

    Raises:
        Refused: TP731 no archive of torch.export; TP732 a damaged zip; TP733 a member is missing, or has another form;
            TP734 something is pickled; TP735, TP736, TP737 see `graph_json`; TP738 a tensor is nowhere, or another one
            than the graph reads; TP739 torch cannot make a program of it.
    """
    path = Path(path)
    members = members_of(path)
    name = _model_of(path, members)
    program = _schema(schema.ExportedProgram, path, members, MODELS_FILENAME_FORMAT.format(name))
    check_program(program, str(path), namespaces)
    found = {
        **_tensors(path, members, WEIGHTS_CONFIG_FILENAME_FORMAT.format(name), WEIGHTS_DIR),
        **_tensors(path, members, CONSTANTS_CONFIG_FILENAME_FORMAT.format(name), CONSTANTS_DIR),
    }
    read = _tensors_read(program)
    if weights is None:
        beside = path.with_suffix(".safetensors")
        weights = beside if read.keys() - found.keys() and beside.exists() else {}
    found = {**(weights if isinstance(weights, Mapping) else safetensors.read(Path(weights))[0]), **found}
    return _made(path, program), _those_read(path, read, found)


def write_archive(program: ExportedProgram, path: Path | str) -> None:
    """Write `program` without its tensors and example inputs, as a `.pt2` that torch knows as one of its archives.

    Raises:
        Refused: TP739 torch cannot write the program.
    """
    try:
        artifact = serialize(
            program, serialize_state_dict=False, serialize_constants=False, serialize_example_inputs=False
        )
    except Exception as error:  # whatever the schema has no words for
        raise refuse("TP739", str(path), f"torch cannot write the program: {_said(error)}",
                     "Export a model whose forward takes, gives and holds tensors alone") from error  # fmt: skip
    nothing = json.dumps({"config": {}})
    with PT2ArchiveWriter(str(path)) as archive:
        archive.write_string(WEIGHTS_CONFIG_FILENAME_FORMAT.format("model"), nothing)
        archive.write_string(CONSTANTS_CONFIG_FILENAME_FORMAT.format("model"), nothing)
        archive.write_bytes(MODELS_FILENAME_FORMAT.format("model"), artifact.exported_program)
        archive.write_bytes(SAMPLE_INPUTS_FILENAME_FORMAT.format("model"), b"")


def _model_of(path: Path, members: Mapping[str, FileBytes]) -> str:
    """The name of the one model in the archive."""
    if "archive_format" not in members:
        what = "is a zip, but no archive of torch.export"
        if "data.pkl" in members:
            what = "is a pickled file of torch.save or torch.jit.save"
        if "serialized_exported_program.json" in members:
            what = "was saved by an old torch, with pickled weights"
        raise refuse("TP731", str(path), what, "Save the exported program with torch.export.save of torch 2.13")
    for member, wanted in (("archive_format", b"pt2"), ("archive_version", b"0"), ("byteorder", b"little")):
        if member not in members:
            raise refuse("TP733", str(path), f"lacks its member {member}", AGAIN)
        if (said := read_member(members[member])) != wanted:
            fact = f"its {member} is {said[:20].decode(errors='replace')!r}, and {wanted.decode()!r} can be read"
            raise refuse("TP733", str(path), fact, "Save it with torch 2.13 on an ordinary machine")
    before, after = MODELS_FILENAME_FORMAT.split("{}")
    models = [member[len(before) : -len(after)] for member in members
              if member.startswith(MODELS_DIR) and member.endswith(after)]  # fmt: skip
    if not models:
        fact = "holds no exported program" + ("; compiled code alone" if _holds(members, "data/aotinductor/") else "")
        raise refuse("TP731", str(path), fact, "Save the program itself, with torch.export.save")
    if len(models) > 1:
        raise refuse("TP731", str(path), f"holds several programs: {', '.join(sorted(models))}",
                     "Save the one that is to be compiled in a file of its own")  # fmt: skip
    return models[0]


def _holds(members: Iterable[str], folder: str) -> bool:
    return any(member.startswith(folder) for member in members)


def _schema(kind: Any, path: Path, members: Mapping[str, FileBytes], member: str) -> Any:
    """A member in JSON as an object of torch's schema, its form checked."""
    where = f"{path}, {member}"
    if member not in members:
        raise refuse("TP733", str(path), f"lacks its member {member}", AGAIN)
    try:
        content = json.loads(read_member(members[member]))
        check_form(kind, content, where)
        return _dict_to_dataclass(kind, content)  # type: ignore[no-untyped-call]
    except (ValueError, RecursionError) as error:
        raise refuse("TP733", where, f"is no JSON ({_said(error)})", AGAIN) from error


def _tensors(path: Path, members: Mapping[str, FileBytes], config: str, folder: str) -> dict[str, Stored]:
    """The tensors that a member `config` says lie in `folder`; those without bytes (of fake tensors) are left out."""
    pickled = config.replace("_weights_config.json", ".pt").replace("_constants_config.json", ".pt")
    if pickled in members:
        raise refuse("TP734", f"{path}, {pickled}", "these tensors are pickled, by an old torch",
                     "Save the exported program with torch.export.save of torch 2.13")  # fmt: skip
    found = {}
    payloads: schema.PayloadConfig = _schema(schema.PayloadConfig, path, members, config)
    for name, payload in payloads.config.items():
        where, meta = f"{path}, {name}", payload.tensor_meta
        if payload.use_pickle or meta is None:
            what = "a tensor of a class of its own" if meta is not None else "an object, not a tensor"
            remedy = "Make it an ordinary tensor before the export (a quantized one: dequantize it, or use packed ints)"
            raise refuse("TP734", where, f"is {what}, which is stored pickled", remedy)
        if folder + payload.path_name not in members:
            raise refuse("TP733", where, f"its member {folder}{payload.path_name} is not there", AGAIN)
        stored = _place(where, meta, members[folder + payload.path_name])
        if stored is not None:
            found[name] = stored
    return found


def _place(where: str, meta: schema.TensorMeta, member: FileBytes) -> Stored | None:
    """A tensor's own bytes within a member, which may hold the storage of several; None where no bytes were saved."""
    dtype, shape = _form(where, meta)
    strides, start = [_int(where, stride) for stride in meta.strides], _int(where, meta.storage_offset)
    width, count = dtype.itemsize, math.prod(shape)
    if not member.nbytes and count:
        return None
    steps = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=False))
    last = start + steps if count else start - 1
    if len(strides) != len(shape) or min([start, *strides]) < 0 or (last + 1) * width > member.nbytes:
        fact = f"has {member.nbytes:,} bytes, too few for {name_of(dtype)}{list(shape)} at its place in them"
        raise refuse("TP733", where, fact, AGAIN)
    contiguous, following = True, 1
    for size, stride in reversed(list(zip(shape, strides, strict=True))):
        contiguous &= size == 1 or stride == following
        following *= size
    if contiguous or not count:
        return Stored(name_of(dtype), shape, FileBytes(member.path, member.offset + start * width, count * width))
    if count * width > member.nbytes:
        raise refuse("TP733", where, f"is an expanded view of {member.nbytes:,} bytes",
                     "Call contiguous() on it before the export")  # fmt: skip
    held = np.memmap(member.path, f"V{width}", "r", member.offset, (member.nbytes // width,))
    view = np.lib.stride_tricks.as_strided(held[start:], shape, [stride * width for stride in strides], writeable=False)
    return Stored(name_of(dtype), shape, MemoryBytes(np.ascontiguousarray(view).tobytes()))


def _form(where: str, meta: schema.TensorMeta) -> tuple[torch.dtype, tuple[int, ...]]:
    """Type and shape of a stored tensor: a dense one of fixed sizes."""
    dtype, shape = _SERIALIZE_TO_TORCH_DTYPE.get(meta.dtype), tuple(_int(where, size) for size in meta.sizes)
    if dtype is None or meta.layout != schema.Layout.Strided or (shape and min(shape) < 0):
        layout, kind = schema.Layout(meta.layout).name, schema.ScalarType(meta.dtype).name
        raise refuse("TP733", where, f"is no dense tensor (layout {layout}, type {kind})",
                     "Make it a dense tensor before the export")  # fmt: skip
    return dtype, shape


def _int(where: str, size: schema.SymInt) -> int:
    if size.type != "as_int":
        raise refuse("TP733", where, "a stored tensor has a size that depends on the inputs", AGAIN)
    return int(size.as_int)


def _tensors_read(program: schema.ExportedProgram) -> dict[str, schema.TensorMeta]:
    """The parameters, buffers and constants that the graph reads, by name, as the graph has them."""
    read = {}
    metas = program.graph_module.graph.tensor_values
    for spec in program.graph_module.signature.input_specs:
        match spec.type:
            case "parameter":
                name, argument = spec.parameter.parameter_name, spec.parameter.arg.name
            case "buffer":
                name, argument = spec.buffer.buffer_name, spec.buffer.arg.name
            case "tensor_constant":
                name, argument = spec.tensor_constant.tensor_constant_name, spec.tensor_constant.arg.name
            case _:
                continue
        if argument not in metas:
            raise refuse("TP733", name, f"the graph does not say what its input {argument} is", AGAIN)
        read[name] = metas[argument]
    return read


def _those_read(path: Path, read: Mapping[str, schema.TensorMeta], found: Mapping[str, Stored]) -> dict[str, Stored]:
    """Where each tensor lies that the graph reads; those that are nowhere are left to whoever needs their bytes."""
    faults = []
    for name, meta in read.items():
        dtype, shape = _form(f"{path}, {name}", meta)
        if name in found and (found[name].dtype, found[name].shape) != (name_of(dtype), shape):
            fact = f"is stored as {found[name].dtype}{list(found[name].shape)}, and the graph reads it as "
            faults.append(Fault("TP738", f"{path}, {name}", fact + f"{name_of(dtype)}{list(shape)}",
                                "Graph and weights are of two exports: save them together"))  # fmt: skip
    raise_all(faults)
    return {name: found[name] for name in read if name in found}


def require_all(program: ExportedProgram, stored: Mapping[str, Stored], path: Path | str) -> None:
    """Refuse (TP738) a program of which tensors are nowhere to be found."""
    missing = [name for name in held_by(program) if name not in stored]
    if missing:
        few = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if missing[3:] else "")
        raise refuse("TP738", str(path), f"does not hold the bytes of {few}",
                     f"Put them beside it, in {Path(path).with_suffix('.safetensors').name}")  # fmt: skip


def _made(path: Path, program: schema.ExportedProgram) -> ExportedProgram:
    """torch's own program of a checked schema, with tensors that have no data."""
    specs = program.graph_module.signature.input_specs
    parameters = {spec.parameter.parameter_name for spec in specs if spec.type == "parameter"}
    kept = {spec.buffer.buffer_name for spec in specs if spec.type == "buffer" and spec.buffer.persistent}
    state: dict[str, torch.Tensor] = {}
    constants: dict[str, torch.Tensor] = {}
    forms = {name: (*_form(f"{path}, {name}", meta), meta) for name, meta in _tensors_read(program).items()}
    try:
        for name, (dtype, shape, meta) in forms.items():
            tensor = torch.empty(shape, dtype=dtype, device="meta")
            if name in parameters:
                state[name] = torch.nn.Parameter(tensor, meta.requires_grad)
            else:
                (state if name in kept else constants)[name] = tensor
        return ExportedProgramDeserializer().deserialize(program, state, constants)
    except Exception as error:  # torch asserts and looks up without words of its own
        raise refuse("TP739", str(path), f"torch cannot make a program of its graph: {_said(error)}",
                     "Export the model again with this torch") from error  # fmt: skip


def _said(error: Exception) -> str:
    """The last line of what an error says, which is where torch puts the cause."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1][:200] if lines else ''}".rstrip(": .")
