"""Tensors of programs and where their bytes lie: found, mapped from files, and put into a program."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from tpcompile.weights.safetensors import Stored
from tpcompile.weights.source import MemoryBytes, Source


def name_of(dtype: torch.dtype) -> str:
    """The standard name of a type: torch's own without its package."""
    return str(dtype).removeprefix("torch.")


def held_by(program: ExportedProgram) -> tuple[str, ...]:
    """The names of the parameters, buffers and constants that a program reads, in its order."""
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    return tuple(str(spec.target) for spec in program.graph_signature.input_specs if spec.kind in kinds)


def source_of(tensor: Tensor) -> MemoryBytes:
    """The bytes of a tensor in memory, row-major; they are the tensor's own where it lies so on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return MemoryBytes(flat.view(torch.uint8).numpy().data if flat.numel() else b"")


def mapped(stored: Mapping[str, Stored]) -> dict[str, Tensor]:
    """Tensors whose memory is their files': pages are read when they are needed, and changes stay in this process.

    Names of one and the same place share their memory.
    """
    maps: dict[Path, mmap.mmap] = {}
    tensors: dict[tuple[Source | int, str, tuple[int, ...]], Tensor] = {}
    found = {}
    for name, entry in stored.items():
        source = entry.source
        place = (id(source.data) if isinstance(source, MemoryBytes) else source, entry.dtype, entry.shape)
        if place not in tensors:
            tensors[place] = _tensor(entry, maps)
        found[name] = tensors[place]
    return found


def _tensor(stored: Stored, maps: dict[Path, mmap.mmap]) -> Tensor:
    dtype, source = getattr(torch, stored.dtype), stored.source
    if not source.nbytes:
        return torch.empty(stored.shape, dtype=dtype)
    if isinstance(source, MemoryBytes):
        return torch.frombuffer(bytearray(source.data), dtype=dtype).view(stored.shape)
    if source.path not in maps:
        with source.path.open("rb") as file:
            maps[source.path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    count = source.nbytes // dtype.itemsize
    return torch.frombuffer(maps[source.path], dtype=dtype, count=count, offset=source.offset).view(stored.shape)


def fill(program: ExportedProgram, tensors: Mapping[str, Tensor]) -> None:
    """Put `tensors` in the place of those that `program` holds, by name; parameters stay parameters.

    Names that share a tensor share one parameter, so that training keeps tied weights tied.
    """
    made: dict[int, torch.nn.Parameter] = {}
    parameters = set(program.graph_signature.parameters)
    for name in held_by(program):
        tensor = tensors[name]
        if name in parameters:
            before = program.state_dict[name]
            parameter = made.setdefault(id(tensor), torch.nn.Parameter(tensor, before.requires_grad))
            program.state_dict[name] = parameter
        elif name in program.state_dict:
            program.state_dict[name] = tensor
        else:
            program.constants[name] = tensor
