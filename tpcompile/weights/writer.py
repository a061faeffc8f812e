"""Streams weights from where they lie into the files of the ranks.

One pass over the source, in memory that does not grow with the model: two threads, each with one block of 16 MB to
read into and one of 16 MB, divided among the parts, in which whole pages are put together. Rank files are written
past the page cache (O_DIRECT), which was measured to be twice as fast as through it, and steady on a busy disk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tpcompile.errors import Refused, raise_all, refuse
from tpcompile.weights.copying import Targets, Task, Workspace, copy_tensor
from tpcompile.weights.layout import Location, Locations, WeightJob, file_sizes, lay_out, stored_bytes
from tpcompile.weights.ranges import Part
from tpcompile.weights.reader import ends_early, size_of_file
from tpcompile.weights.source import FileBytes
from tpcompile.weights.stage import OutputFile, output_files
from tpcompile.weights.widths import bits_of, bytes_of

__all__ = ["Location", "WeightJob", "stored_bytes", "write_weights"]

THREADS = 2
Progress = Callable[[int, int], None]


def write_weights(
    jobs: Iterable[WeightJob],
    folder: Path,
    rank_files: Sequence[str],
    shared_file: str,
    progress: Progress | None = None,
) -> Locations:
    """Store every job's parts in files of `folder` and return, per job, where each rank's part lies.

    A tensor that two or more ranks hold whole is stored once, in `shared_file`; everything else in the rank's own
    file. Every tensor starts at a multiple of 4096. A file is made only when something is stored in it; what was
    made is on the disk when this returns, and gone when it raises.

    Args:
        jobs: the tensors; names are unique, and each has as many parts as there are `rank_files`.
        folder: an existing folder that has none of the files yet.
        rank_files: one plain file name per rank.
        shared_file: the plain file name for what ranks share.
        progress: called in the calling thread after each tensor, with the bytes read so far and in all.

    Raises:
        ValueError: when jobs, parts and ranks do not fit together.
        Refused: TP401 the source has another length than type and shape need, TP402 it cannot be read,
            TP403 the type cannot be stored, TP405 the disk is full, TP406 the files cannot be written.
    """
    jobs = tuple(jobs)
    locations = lay_out(jobs, rank_files, shared_file)
    check_sources(jobs)
    with output_files(Path(folder), file_sizes(locations)) as files:
        tasks = [task_of(job, locations[job.name], files) for job in jobs]
        copy_all(tasks, progress)
        for file in files.values():
            file.finish()
    return locations


def check_sources(jobs: Sequence[WeightJob]) -> None:
    """Refuse, all at once, the jobs whose bytes are not all there."""
    refusals: list[Refused] = []
    sizes: dict[Path, Any] = {}
    for job in jobs:
        try:
            check_source(job, sizes)
        except Refused as refused:
            refusals.append(refused)
    raise_all(fault for refused in refusals for fault in refused.faults)


def check_source(job: WeightJob, sizes: dict[Path, Any]) -> None:
    """Raise Refused where the job's bytes are not all there."""
    bits, source = bits_of(job.dtype, job.name), job.source
    needed = bytes_of(bits, job.shape)
    if source.nbytes != needed:
        fact = f"its data has {source.nbytes:,} bytes, but {job.dtype}{list(job.shape)} takes {needed:,}"
        raise refuse("TP401", job.name, fact, "The model file and its data do not belong together: export it again")
    if isinstance(source, FileBytes) and size_of_file(source.path, job.name, sizes) < source.offset + needed:
        raise ends_early(source, job.name, sizes[source.path])


def task_of(job: WeightJob, places: Sequence[Location | None], files: dict[str, OutputFile]) -> Task:
    """The distinct parts of a job and the places each goes to; zeros need no writing: new files read as zeros."""
    targets: dict[Part, dict[Location, None]] = {}
    for rank, (part, place) in enumerate(zip(job.parts, places, strict=True)):
        if part is not None and place is not None and rank not in job.zeroed and place.length:
            targets.setdefault(part, {})[place] = None
    parts: dict[Part, Targets] = {
        part: tuple((files[place.file], place.offset) for place in held) for part, held in targets.items()
    }
    return Task(job, bits_of(job.dtype, job.name), parts)


def copy_all(tasks: Sequence[Task], progress: Progress | None) -> None:
    """Copy the tensors on two threads; the first error, or an interrupt of this thread, ends both of them."""
    tasks = [task for task in tasks if task.parts]
    tasks.sort(key=lambda task: -task.source_bytes)  # a long one at the end would leave a thread idle
    total, done = sum(task.source_bytes for task in tasks), 0
    forget = total > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    stop = threading.Event()
    workspaces: SimpleQueue[Workspace] = SimpleQueue()
    for _ in range(min(THREADS, len(tasks))):
        workspaces.put(Workspace())

    def work(task: Task) -> int:
        workspace = workspaces.get()
        try:
            copy_tensor(task, workspace, forget, stop)
        finally:
            workspaces.put(workspace)
        return task.source_bytes

    executor = ThreadPoolExecutor(THREADS, thread_name_prefix="weights")
    try:
        for finished in as_completed([executor.submit(work, task) for task in tasks]):
            done += finished.result()
            if progress:
                progress(done, total)
    finally:
        stop.set()
        executor.shutdown(cancel_futures=True)
