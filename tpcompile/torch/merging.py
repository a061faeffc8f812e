"""Cut states, trained or not, back into one checkpoint: every element from a rank that holds it, bit for bit."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tpcompile.bundle.manifest import Manifest
from tpcompile.bundle.write import beside
from tpcompile.errors import refuse
from tpcompile.torch import holdings
from tpcompile.torch.holdings import Held, Holdings
from tpcompile.torch.tensors import mapped, name_of
from tpcompile.weights import safetensors
from tpcompile.weights.ranges import Part, Range, local_shape
from tpcompile.weights.safetensors import arrange
from tpcompile.weights.stage import OutputFile

State = Mapping[str, Tensor]
Block = tuple[Range, ...]
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
    pieces = list(_pieces(name, ranks, states))
    cuts = _cuts(shape, [held.part for _, _, held, _ in pieces])
    owners: dict[Block, int] = {}
    for rank, mine, held, tensor in pieces:
        bits = tensor.cpu().contiguous().view(whole.dtype)
        if held.zeroed:
            if bits.count_nonzero():
                raise refuse("TP754", name, f"rank {rank} was to hold zeros as {mine}, and does not",
                             "Do not train programs that hold zeroed copies")  # fmt: skip
            continue
        for there, here in _blocks(held.part, cuts):
            at, piece = tuple(slice(*axis) for axis in there), bits[tuple(slice(*axis) for axis in here)]
            if there not in owners:
                owners[there], whole[at] = rank, piece
            elif not torch.equal(whole[at], piece):
                wrong = f"{int((whole[at] != piece).sum()):,} elements"
                if owners[there] == rank:
                    fact = f"rank {rank} holds it twice, and the two differ in {wrong}"
                    remedy = "Train a model that uses it once, or pin it so that both uses are cut alike"
                    raise refuse("TP754", name, fact, remedy)
                fact = f"ranks {owners[there]} and {rank} differ in {wrong} that both hold"
                raise refuse("TP754", name, fact, NOT_ALIKE)
    if len(owners) < math.prod(len(axis) - 1 for axis in cuts):
        raise refuse("TP754", name, "there are elements of it that no rank holds", "Compile the model again")
    return whole


def _cuts(shape: Sequence[int], parts: Sequence[Part]) -> list[list[int]]:
    """Per axis every index at which some part begins or ends, both ends of the axis included."""
    ranges = [[pair for part in parts for pair in part.axes[axis] or ()] for axis in range(len(shape))]
    ends = [{at for pair in pairs for at in pair} for pairs in ranges]
    return [sorted({0, size, *found}) for size, found in zip(shape, ends, strict=True)]


def _blocks(part: Part, cuts: Sequence[Sequence[int]]) -> Iterator[tuple[Block, Block]]:
    """Where each block of a part lies in the whole tensor, and where in the part itself; no cut goes through one."""
    axes: list[list[tuple[Range, Range]]] = []
    for ranges, axis in zip(part.axes, cuts, strict=True):
        end, pairs = 0, []
        for start, stop in ranges if ranges is not None else ((0, axis[-1]),):
            for low, high in pairwise(at for at in axis if start <= at <= stop):
                pairs.append(((low, high), (end + low - start, end + high - start)))
            end += stop - start
        axes.append(pairs)
    for block in product(*axes):
        yield tuple(there for there, _ in block), tuple(here for _, here in block)
