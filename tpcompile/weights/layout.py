"""Which bytes go where: every tensor's place in the rank files and in the shared one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from tpcompile.weights.ranges import Part, is_whole, local_shape
from tpcompile.weights.source import Source
from tpcompile.weights.widths import bits_of, bytes_of

PAGE = 4096
"""Every tensor starts at a multiple of this: what O_DIRECT and mmap want."""


@dataclass(frozen=True)
class WeightJob:
    """One tensor to be stored.

    Attributes:
        name: the tensor's name, unique among the jobs.
        dtype: the standard name of its type ("float16", "bfloat16", "int4", …).
        shape: its global shape.
        source: where its bytes lie: row-major, little-endian, sub-byte types packed in flat order.
        parts: per rank what it holds, or None where it stores nothing of this tensor.
        zeroed: the ranks that store zeros in the place of their part (a row-parallel bias counts on one rank only).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: Source
    parts: tuple[Part | None, ...]
    zeroed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Location:
    """Where a stored tensor lies: `length` bytes from `offset` (a multiple of 4096) of `file`, a plain file name."""

    file: str
    offset: int
    length: int


Locations = dict[str, tuple[Location | None, ...]]


def lay_out(jobs: Iterable[WeightJob], rank_files: Sequence[str], shared_file: str) -> Locations:
    """A place per job and rank: whole on two or more ranks once in `shared_file`, all else in the rank's own file.

    Raises:
        ValueError: when the jobs do not fit the ranks, or a file name is not plain: all files lie in one folder.
        Refused: TP403 for a type that cannot be stored.
    """
    check_names([*rank_files, shared_file])
    ends = dict.fromkeys([*rank_files, shared_file], 0)

    def place(file: str, length: int) -> Location:
        location = Location(file, ends[file], length)
        ends[file] = round_up(location.offset + length)
        return location

    locations: Locations = {}
    for job in jobs:
        check_job(job, len(rank_files), locations)
        bits = bits_of(job.dtype, job.name)
        held = [part for rank, part in enumerate(job.parts) if rank not in job.zeroed]
        sharing = sum(part is not None and is_whole(job.shape, part) for part in held) > 1
        shared = place(shared_file, bytes_of(bits, job.shape)) if sharing else None
        locations[job.name] = tuple(
            None
            if part is None
            else shared
            if shared and rank not in job.zeroed and is_whole(job.shape, part)
            else place(rank_files[rank], bytes_of(bits, local_shape(job.shape, part)))
            for rank, part in enumerate(job.parts)
        )
    return locations


def file_sizes(locations: Locations) -> dict[str, int]:
    """Bytes of each file that stores something; the others are not made."""
    sizes: dict[str, int] = {}
    for location in (found for places in locations.values() for found in places if found):
        sizes[location.file] = max(sizes.get(location.file, 0), location.offset + location.length)
    return sizes


def stored_bytes(jobs: Iterable[WeightJob], ranks: int) -> int:
    """Bytes that `write_weights` takes on the disk for `jobs` on `ranks` ranks, the padding included."""
    locations = lay_out(jobs, [f"rank{rank}" for rank in range(ranks)], "shared")
    return sum(round_up(size) for size in file_sizes(locations).values())


def round_up(nbytes: int) -> int:
    """The next multiple of a page."""
    return -(-nbytes // PAGE) * PAGE


def check_names(files: Sequence[str]) -> None:
    """Raise ValueError unless every name is a plain, distinct one: readers refuse links, `..` and absolute paths."""
    for file in files:
        if file in ("", ".", "..") or PurePath(file).name != file or "\\" in file or "\0" in file:
            raise ValueError(f"weights are stored in plain files of one folder, not in {file!r}")
    if len(set(files)) < len(files):
        raise ValueError(f"the rank files and the shared file need distinct names, got {list(files)}")


def check_job(job: WeightJob, ranks: int, seen: Locations) -> None:
    """Raise ValueError for a job that does not fit: these are faults of the caller, not of the model."""
    if job.name in seen:
        raise ValueError(f"two jobs are named {job.name!r}")
    if len(job.parts) != ranks:
        raise ValueError(f"{job.name}: {len(job.parts)} parts for {ranks} ranks")
    for rank in job.zeroed:
        if not 0 <= rank < ranks or job.parts[rank] is None:
            raise ValueError(f"{job.name}: rank {rank} is to store zeros but has no part")
