"""Rank files in the safetensors format: one pass over the source as for all rank files, tensors without gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpcompile.weights.copying import Targets, Task
from tpcompile.weights.layout import WeightJob, check_job, check_names
from tpcompile.weights.ranges import Part, local_shape
from tpcompile.weights.reader import Bytes
from tpcompile.weights.safetensors import Arrangement, arrange
from tpcompile.weights.stage import OutputFile, output_files
from tpcompile.weights.widths import bits_of
from tpcompile.weights.writer import Progress, check_sources, copy_all


@dataclass(frozen=True)
class Span:
    """A tensor's place in a packed file, up to `stop`: what fills a stage's last page up is not written."""

    file: OutputFile
    stop: int

    def write(self, pages: Bytes, offset: int) -> None:
        """Write what of `pages` lies before the tensor's end."""
        self.file.write(pages[: self.stop - offset], offset)


def arrange_ranks(jobs: Sequence[WeightJob], metadata: Sequence[Mapping[str, str]]) -> list[Arrangement]:
    """How each rank's file will be laid out; `metadata` are texts to stand in its header.

    One name may stand for two jobs if no rank holds parts of both.

    Raises:
        ValueError: jobs that do not fit the ranks.
        Refused: TP403 a type that safetensors has not.
    """
    for job in jobs:
        check_job(job, len(metadata), {})
    arrangements = []
    for rank, texts in enumerate(metadata):
        tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
        for job in jobs:
            part = job.parts[rank]
            if part is not None:
                if job.name in tensors:
                    raise ValueError(f"two tensors of rank {rank} are named {job.name!r}")
                tensors[job.name] = (job.dtype, local_shape(job.shape, part))
        arrangements.append(arrange(tensors, texts))
    return arrangements


def write_packed(
    jobs: Iterable[WeightJob],
    folder: Path,
    files: Sequence[str],
    arrangements: Sequence[Arrangement],
    progress: Progress | None = None,
) -> None:
    """Store every job's parts in a safetensors file per rank; each rank has all that it needs in its own.

    Args:
        jobs: the tensors, those that `arrange_ranks` was given.
        folder: an existing folder that has none of the files yet.
        files: one plain file name per rank.
        arrangements: what `arrange_ranks` gave.
        progress: called in the calling thread after each tensor, with the bytes read so far and in all.

    Raises:
        Refused: TP401 the source has another length than type and shape need, TP402 it cannot be read,
            TP405 the disk is full, TP406 the files cannot be written.
    """
    jobs = tuple(jobs)
    check_names(files)
    check_sources(jobs)
    sizes = {file: arrangement.size for file, arrangement in zip(files, arrangements, strict=True)}
    with output_files(Path(folder), sizes) as opened:
        ranks = [opened[file] for file in files]
        for file, arrangement in zip(ranks, arrangements, strict=True):
            file.write(np.frombuffer(arrangement.header, np.uint8), 0)
        copy_all([_task(job, ranks, arrangements) for job in jobs], progress)
        for file in ranks:
            file.finish()


def _task(job: WeightJob, files: Sequence[OutputFile], arrangements: Sequence[Arrangement]) -> Task:
    """The distinct parts of a job and the places each goes to; zeros need no writing: new files read as zeros."""
    bits = bits_of(job.dtype, job.name)
    targets: dict[Part, Targets] = {}
    for rank, part in enumerate(job.parts):
        if part is not None and rank not in job.zeroed:
            start, stop = arrangements[rank].places[job.name]
            if start < stop:
                targets[part] = (*targets.get(part, ()), (Span(files[rank], stop), start))
    return Task(job, bits, targets)
