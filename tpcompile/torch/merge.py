"""Cut states, trained or not, back into one checkpoint: every element from a rank that holds it, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tpcompile.bundle.manifest import Manifest
from tpcompile.bundle.write import beside
from tpcompile.errors import Refused, refuse
from tpcompile.torch import holdings
from tpcompile.torch.holdings import Held, Holdings
from tpcompile.torch.tensors import mapped, name_of
from tpcompile.weights import safetensors
from tpcompile.weights.ranges import Part, local_shape
from tpcompile.weights.safetensors import arrange
from tpcompile.weights.stage import OutputFile

State = Mapping[str, Tensor]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
NOT_ALIKE = "Merge the states of one training step, of the ranks of one replica"


def merge(folder: Path | str, out: Path | str, states: Sequence[State | Path | str] = (), force: bool = False) -> None:
    """Write one safetensors file with the tensors of the source, by its names, from a bundle's ranks.

    Args:
        folder: the bundle.
        out: the file to write; with `force` it may be there.
        states: per rank its module's `state_dict()`, or a safetensors file of it; none: the bundle's own weights.

    Raises:
        Refused: TP411 `out` exists; TP754 ranks contradict each other; TP755 a state is not one of this bundle's rank;
            TP405, TP406 it cannot be written; TP451 to TP458, TP738 the bundle.
    """
    manifest = Manifest.read(folder, of_torch=True)
    ranks = [holdings.read(Path(folder) / entry.data[0].file) for entry in manifest.ranks]
    if not states:
        found: list[State] = [mapped(stored) for stored, _ in ranks]
    else:
        found = [mapped(safetensors.read(Path(state))[0]) if isinstance(state, (Path, str)) else state
                 for state in states]  # fmt: skip
    merge_states([held for _, held in ranks], found, out, force)


def merge_states(ranks: Sequence[Holdings], states: Sequence[State], out: Path | str, force: bool = False) -> None:
    """As `merge`, for ranks that hold what `ranks` say. One tensor at a time is in memory."""
    out = Path(out)
    if os.path.lexists(out) and not force:
        raise refuse("TP411", str(out), "exists already", "Choose another output, or replace it with force=True")
    if len(states) != len(ranks):
        raise refuse("TP755", "merge", f"{len(states)} states for {len(ranks)} ranks",
                     "Give the states of all ranks of one replica, in their order")  # fmt: skip
    names = holdings.names_of_sources(ranks)
    forms = {name: _form(name, ranks, states) for name in names}
    tensors = {other: (name_of(dtype), shape) for name, (dtype, shape) in forms.items()
               for other in (name, *names[name])}  # fmt: skip
    arrangement = arrange(tensors, {"format": "pt"})
    staging = beside(out.absolute(), "tmp")
    file = OutputFile(staging, arrangement.size)
    try:
        file.write(np.frombuffer(arrangement.header, np.uint8), 0)
        for name, others in names.items():
            whole = _merged(name, forms[name], ranks, states).reshape(-1).view(torch.uint8).numpy()
            for each in (name, *others):
                file.write(whole, arrangement.places[each][0])
        file.finish()
        staging.replace(out)
    finally:
        file.close()
        staging.unlink(missing_ok=True)


def _pieces(name: str, ranks: Sequence[Holdings], states: Sequence[State]) -> Iterator[tuple[int, str, Held, Tensor]]:
    """Rank, name there, and tensor of every piece of the source's tensor `name`, each of the form that it should have.

    Raises:
        Refused: TP755 a state lacks a tensor, or has one of another shape.
    """
    for rank, (holdings_of_rank, state) in enumerate(zip(ranks, states, strict=True)):
        for mine, held in holdings_of_rank.items():
            if held.source != name or not held.kept:
                continue
            tensor = state.get(mine)
            shape = local_shape(held.shape, held.part)
            if tensor is None or tuple(tensor.shape) != shape:
                fact = "lacks it" if tensor is None else f"has it as {list(tensor.shape)} instead of {list(shape)}"
                raise refuse("TP755", mine, f"the state of rank {rank} {fact}",
                             "Give the state_dict() of the module that this rank's program makes")  # fmt: skip
            yield rank, mine, held, tensor.detach()


def _form(name: str, ranks: Sequence[Holdings], states: Sequence[State]) -> tuple[torch.dtype, tuple[int, ...]]:
    """Type and shape of a merged tensor: the type is that of the states, which must agree."""
    pieces = [(rank, held.shape, tensor.dtype) for rank, _, held, tensor in _pieces(name, ranks, states)]
    (first, shape, dtype), *others = pieces
    for rank, _, other in others:
        if other != dtype:
            fact = f"rank {first} has it in {name_of(dtype)}, rank {rank} in {name_of(other)}"
            raise refuse("TP754", name, fact, NOT_ALIKE)
    return dtype, shape


def _merged(
    name: str, form: tuple[torch.dtype, tuple[int, ...]], ranks: Sequence[Holdings], states: Sequence[State]
) -> Tensor:
    """The bits of the whole tensor, as integers.

    Raises:
        Refused: TP754 ranks differ in what both hold, a rank that held zeros does no more, or no rank holds some of it.
    """
    dtype, shape = form
    whole = torch.zeros(shape, dtype=BITS[dtype.itemsize])
    owners = torch.full(shape, -1, dtype=torch.int16)
    for rank, mine, held, tensor in _pieces(name, ranks, states):
        bits = tensor.cpu().contiguous().view(whole.dtype)
        if held.zeroed:
            if bits.count_nonzero():
                raise refuse("TP754", name, f"rank {rank} was to hold zeros as {mine}, and does not",
                             "Do not train programs that hold zeroed copies")  # fmt: skip
            continue
        for there, here in _blocks(held.part):
            before, piece = owners[there], bits[here]
            taken = before >= 0
            if taken.any():
                wrong = taken & (whole[there] != piece)
                if wrong.any():
                    raise _differ(name, int(before[wrong][0]), rank, int(wrong.sum()))
            whole[there] = piece
            owners[there] = torch.where(taken, before, rank)
    if (owners < 0).any():
        raise refuse("TP754", name, "there are elements of it that no rank holds", "Compile the model again")
    return whole


def _blocks(part: Part) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Where each block of a part lies in the whole tensor, and where in the part itself."""
    axes: list[list[tuple[slice, slice]]] = []
    for ranges in part.axes:
        if ranges is None:
            axes.append([(slice(None), slice(None))])
            continue
        end, pairs = 0, []
        for start, stop in ranges:
            pairs.append((slice(start, stop), slice(end, end + stop - start)))
            end += stop - start
        axes.append(pairs)
    for block in product(*axes):
        yield tuple(there for there, _ in block), tuple(here for _, here in block)


def _differ(name: str, first: int, second: int, count: int) -> Refused:
    fact = f"ranks {first} and {second} differ in {count:,} elements that both hold"
    return refuse("TP754", name, fact, NOT_ALIKE)
