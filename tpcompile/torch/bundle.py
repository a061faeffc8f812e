"""A bundle of rank programs: per rank a `.pt2` without weights and a safetensors file with what this rank holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.export.passes import move_to_device_pass

from tpcompile.bundle.manifest import TORCH, DataFile, Manifest, RankEntry
from tpcompile.bundle.write import BundleFolder, require_space
from tpcompile.errors import refuse
from tpcompile.graph.local import LocalWeight
from tpcompile.torch import holdings
from tpcompile.torch.archive import read_archive, require_all, write_archive
from tpcompile.torch.holdings import Held
from tpcompile.torch.tensors import fill, held_by, mapped, name_of, source_of
from tpcompile.weights.layout import WeightJob
from tpcompile.weights.packed import arrange_ranks, write_packed
from tpcompile.weights.ranges import whole
from tpcompile.weights.writer import Progress

PLAN = "plan.toml"


@dataclass(frozen=True)
class RankPrograms:
    """What a bundle is made of.

    Attributes:
        programs: one per rank, with the collectives of `tpcompile.torch.collectives`. Tensors that are no part of one
            of `weights` are the compiler's own and are taken from the program; the others may be without data.
        weights: parts of the source's tensors, named as in the programs.
        manifest: facts for bundle.json; its ranks, plan and dialect are filled in. Inputs and outputs are named as
            the tensors that `forward` takes and gives, in their flat order.
        plan: the text of plan.toml.
        tied: names of the source's tensors that are another one: name → the name that stands for both.
    """

    programs: Sequence[ExportedProgram]
    weights: Sequence[LocalWeight]
    manifest: Manifest
    plan: str
    tied: Mapping[str, str] = field(default_factory=dict)


def save(ranks: RankPrograms, folder: Path | str, force: bool = False, progress: Progress | None = None) -> None:
    """Write the bundle, whole or not at all; weights are streamed from where they lie.

    Args:
        ranks: the programs and what they are made of.
        folder: the bundle's place; with `force` a bundle or empty folder there is replaced.
        progress: called after each tensor with the bytes read so far and in all.

    Raises:
        Refused: TP401 to TP406 weights that cannot be read or written; TP411 to TP415 the place; TP739 torch cannot
            write a program.
    """
    jobs, held = jobs_of(ranks)
    texts = [{"format": "pt", holdings.KEY: holdings.to_text(mine)} for mine in held]
    arrangements = arrange_ranks(jobs, texts)
    files = [f"rank{rank}.safetensors" for rank in range(len(held))]
    with BundleFolder(Path(folder), force) as staging:
        require_space(staging, sum(arrangement.size for arrangement in arrangements))
        write_packed(jobs, staging, files, arrangements, progress)
        entries = []
        for rank, (program, arrangement) in enumerate(zip(ranks.programs, arrangements, strict=True)):
            model = staging / f"rank{rank}.pt2"
            write_archive(program, model)
            data = (DataFile(files[rank], arrangement.size),)
            entries.append(RankEntry(rank, rank, 0, model.name, _digest(model), data))
        (staging / PLAN).write_text(ranks.plan, encoding="utf-8")
        replace(ranks.manifest, ranks=tuple(entries), plan=PLAN, dialect=TORCH).write(staging)


def jobs_of(ranks: RankPrograms) -> tuple[list[WeightJob], list[dict[str, Held]]]:
    """The tensors to store, and what each rank holds, by the names of its program."""
    read = [set(held_by(program)) for program in ranks.programs]
    kept = [_kept(program) for program in ranks.programs]
    jobs: list[WeightJob] = []
    held: list[dict[str, Held]] = [{} for _ in ranks.programs]
    for weight in ranks.weights:
        source = weight.weight
        parts = tuple(part if weight.name in names else None for part, names in zip(weight.parts, read, strict=True))
        zeroed = frozenset(rank for rank in weight.zeroed if parts[rank] is not None)
        jobs.append(WeightJob(weight.name, source.dtype, source.shape, source.source, parts, zeroed))
        also = tuple(name for name, first in ranks.tied.items() if first == source.name)
        for rank, part in enumerate(parts):
            if part is not None:
                kept_here = weight.name in kept[rank]
                held[rank][weight.name] = Held(source.name, source.shape, part, rank in zeroed, kept_here, also)
    for rank, program in enumerate(ranks.programs):
        for name in sorted(read[rank] - held[rank].keys()):
            tensor = program.state_dict[name] if name in program.state_dict else program.constants[name]
            mine = whole(tensor.dim())
            parts = tuple(mine if other == rank else None for other in range(len(held)))
            jobs.append(WeightJob(name, name_of(tensor.dtype), tuple(tensor.shape), source_of(tensor), parts))
            held[rank][name] = Held(None, tuple(tensor.shape), mine, kept=False)
    return jobs, held


def _kept(program: ExportedProgram) -> set[str]:
    """The names of a program's tensors that checkpoints hold."""
    return {str(spec.target) for spec in program.graph_signature.input_specs
            if spec.kind == InputKind.PARAMETER or (spec.kind == InputKind.BUFFER and spec.persistent)}  # fmt: skip


def load(
    folder: Path | str, rank: int, device: torch.device | str = "cpu", namespaces: Iterable[str] = ()
) -> ExportedProgram:
    """The program of a rank; `load(folder, rank).module()` runs and trains.

    Only the rank's own files are opened. On the CPU its tensors are mapped: pages are read when they are needed, and
    training changes this process's copy of them, not the file. `namespaces` are those of operators of other libraries
    that the graph may call; import what defines them before.

    Raises:
        Refused: TP108 no such rank; TP451 to TP458 the bundle; TP608 a program of another compile; TP731 to TP739 what
            a rank's files may not be.
    """
    folder = Path(folder)
    manifest = Manifest.read(folder, ranks=[rank], of_torch=True)
    if not 0 <= rank < manifest.world_size:
        raise refuse("TP108", f"rank {rank}", f"the bundle has ranks 0 to {manifest.world_size - 1}",
                     "Ask for one of them")  # fmt: skip
    entry = manifest.ranks[rank]
    model, weights = folder / entry.model, folder / entry.data[0].file
    if _digest(model) != entry.model_sha256:
        raise refuse("TP608", str(model), "is not the file that bundle.json describes",
                     "It was changed, or belongs to another compile: copy the whole bundle again")  # fmt: skip
    program, stored = read_archive(model, holdings.read(weights)[0], namespaces)
    require_all(program, stored, model)
    tensors = mapped(stored)
    if torch.device(device).type == "cpu":
        fill(program, tensors)
        return program
    moved = {id(tensor): tensor.to(device) for tensor in tensors.values()}
    tensors = {name: moved[id(tensor)] for name, tensor in tensors.items()}
    fill(program, tensors)
    program = move_to_device_pass(program, device)
    fill(program, tensors)  # again: the pass makes a parameter of its own of each, and unties what is tied
    return program


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
