"""Every stored part is byte for byte what numpy slicing gives."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tpcompile.weights import copying, geometry
from tpcompile.weights.ranges import Part, is_whole, ranges_of, take, whole
from tpcompile.weights.source import FileBytes, MemoryBytes
from tpcompile.weights.widths import BITS, pack, unpack
from tpcompile.weights.writer import Location, WeightJob, stored_bytes, write_weights

SHARED = "shared.bin"
WIDE = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
KINDS = {
    "rows": lambda n, r, ranks: Part((block(n[0], r, ranks), None)),
    "columns": lambda n, r, ranks: Part((None, block(n[1], r, ranks))),
    "both axes": lambda n, r, ranks: Part((block(n[0], r, ranks), block(n[1], ranks - 1 - r, ranks))),
    "fused": lambda n, r, ranks: Part((None, segments(n[1], (2, 1, 1), r, ranks))),
    "strided": lambda n, r, ranks: Part((None, tuple((i, i + 3) for i in range(r, n[1] - 2, 3 * ranks)))),
    "single elements": lambda n, r, ranks: Part((None, tuple((i, i + 1) for i in range(r, n[1], ranks)))),
    "uneven": lambda n, r, ranks: Part((None, ranges_of(np.array_split(np.arange(n[1]), ranks)[r]))),
    "turned round": lambda n, r, ranks: Part((None, tuple((i, i + 5) for i in range(n[1] - 5 - r, 0, -17)))),
    "rows turned round": lambda n, r, ranks: Part((tuple((i, i + 2) for i in range(n[0] - 2 - r, 0, -5)), None)),
    "irregular": lambda n, r, ranks: Part(
        (None, ranges_of(np.sort(np.random.default_rng(r).choice(n[1], n[1] // 2, replace=False))))
    ),
    "copies": lambda n, r, ranks: Part((None, block(n[1], r // 2, ranks // 2))),
}


def block(size: int, rank: int, ranks: int) -> tuple[tuple[int, int], ...]:
    return ((size * rank // ranks, size * (rank + 1) // ranks),)


def segments(size: int, shares: tuple[int, ...], rank: int, ranks: int) -> tuple[tuple[int, int], ...]:
    unit, start, found = size // sum(shares), 0, []
    for share in shares:
        found += [(start + low, start + high) for low, high in block(unit * share, rank, ranks)]
        start += unit * share
    return tuple(found)


def values(shape: tuple[int, ...], bits: int = 16, seed: int = 0) -> NDArray[Any]:
    if bits == 128:
        return values((*shape, 2), 64).view(np.complex128)[..., 0].copy()
    return np.random.default_rng(seed).integers(0, 1 << bits, shape, WIDE[max(8, bits)])


def job_of(
    name: str, array: NDArray[Any], parts: tuple[Part | None, ...], dtype: str = "float16", **more: object
) -> WeightJob:
    bits = BITS[dtype]
    data = pack(array, bits).tobytes() if bits < 8 else array.tobytes()
    return WeightJob(name, dtype, array.shape, MemoryBytes(data), parts, **more)  # type: ignore[arg-type]


def in_file(job: WeightJob, path: Path, before: int = 13) -> WeightJob:
    assert isinstance(job.source, MemoryBytes)
    path.write_bytes(b"x" * before + bytes(job.source.data) + b"y" * 7)
    return WeightJob(job.name, job.dtype, job.shape, FileBytes(path, before, job.source.nbytes), job.parts, job.zeroed)


def write(jobs: list[WeightJob], folder: Path) -> dict[str, tuple[Location | None, ...]]:
    folder.mkdir()
    return write_weights(jobs, folder, [f"rank{rank}.bin" for rank in range(len(jobs[0].parts))], SHARED)


def stored(folder: Path, location: Location) -> bytes:
    assert location.offset % 4096 == 0
    data = (folder / location.file).read_bytes()
    assert len(data) >= location.offset + location.length
    return data[location.offset : location.offset + location.length]


def expected(array: NDArray[Any], part: Part, bits: int) -> bytes:
    taken = take(array, part)
    return pack(taken, bits).tobytes() if bits < 8 else taken.tobytes()


def hold(job: WeightJob, array: NDArray[Any], folder: Path) -> None:
    locations = write([job], folder)[job.name]
    for rank, (part, location) in enumerate(zip(job.parts, locations, strict=True)):
        if part is None:
            assert location is None
            continue
        assert location is not None
        want = expected(array, part, BITS[job.dtype])
        assert stored(folder, location) == (bytes(len(want)) if rank in job.zeroed else want), f"rank {rank}: {part}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(96, 344), (700, 1024), (5, 8000)])
def test_cuts_of_a_matrix_are_numpy_slices(kind: str, shape: tuple[int, int], tmp_path: Path) -> None:
    array = values(shape)
    parts = tuple(KINDS[kind](shape, rank, 4) for rank in range(4))
    hold(in_file(job_of("w", array, parts), tmp_path / "source"), array, tmp_path / "out")


@pytest.mark.parametrize("axis", range(4))
def test_every_axis_of_a_4d_tensor_can_be_cut(axis: int, tmp_path: Path) -> None:
    array = values((6, 10, 9, 14))
    cut = [ranges_of(held) for held in np.array_split(np.arange(array.shape[axis]), 3)]
    parts = tuple(Part((*[None] * axis, held, *[None] * (3 - axis))) for held in cut)
    hold(job_of("w", array, parts), array, tmp_path / "out")


@pytest.mark.parametrize("dtype", [name for name in BITS if "_" not in name])
def test_every_type_keeps_its_bytes(dtype: str, tmp_path: Path) -> None:
    array = values((12, 40), BITS[dtype])
    parts = (Part((None, ((0, 8), (24, 32)))), Part((((4, 12),), None)), whole(2), whole(2))
    hold(job_of("w", array, parts, dtype), array, tmp_path / "out")


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4", "uint4"])
def test_types_spelled_as_ml_dtypes_does(dtype: str, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(0, 3, (8, 24)).astype(getattr(ml_dtypes, dtype))
    part = Part((None, ((4, 10),)))
    bits = BITS[dtype.replace("_", "")]
    packed = pack(numbers.view(np.uint8) & 15, 4).tobytes() if bits == 4 else numbers.tobytes()
    found = write([WeightJob("w", dtype, (8, 24), MemoryBytes(packed), (part,))], tmp_path / "out")["w"][0]
    assert found is not None
    want = numbers[:, 4:10]
    assert stored(tmp_path / "out", found) == (
        pack(want.copy().view(np.uint8) & 15, 4).tobytes() if bits == 4 else want.tobytes()
    )


@pytest.mark.parametrize("shape, held", [((6, 10), ((0, 5),)), ((7, 9), ((1, 4), (6, 7))), ((13,), ((3, 10),))])
@pytest.mark.parametrize("dtype", ["int4", "uint2"])
def test_a_small_tensor_is_repacked_where_a_cut_divides_a_byte(
    dtype: str, shape: tuple[int, ...], held: tuple[tuple[int, int], ...], tmp_path: Path
) -> None:
    array = values(shape, BITS[dtype])
    parts = (Part((*[None] * (len(shape) - 1), held)), whole(len(shape)))
    hold(job_of("w", array, parts, dtype), array, tmp_path / "out")


@pytest.mark.parametrize("held", [((0, 3),), ((3, 8),), ((1, 2), (5, 8))])
def test_a_large_tensor_is_repacked_window_by_window(
    held: tuple[tuple[int, int], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "REPACKED_AT_ONCE", 1000)
    array = values((1003, 8), 4)
    parts = (Part((None, held)), Part((((1, 500), (901, 1003)), ((0, 5),))), Part((((3, 1002),), None)), whole(2))
    hold(job_of("w", array, parts, "int4"), array, tmp_path / "out")


def test_packing_is_low_bits_first_as_onnx_packs() -> None:
    assert pack(np.array([1, 2, 3], np.uint8), 4).tobytes() == b"\x21\x03"
    assert unpack(np.frombuffer(b"\x21\x03", np.uint8), 4, 3).tolist() == [1, 2, 3]


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (4, 0)])
def test_scalars_and_empty_tensors(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = values(shape)
    hold(job_of("w", array, (whole(len(shape)), whole(len(shape)), None)), array, tmp_path / "out")


def test_what_ranks_hold_whole_is_stored_once(tmp_path: Path) -> None:
    norm, cut = values((4096,)), values((64, 32), seed=1)
    jobs = [
        job_of("norm", norm, (whole(1),) * 3),
        job_of("cut", cut, tuple(KINDS["rows"](cut.shape, rank, 3) for rank in range(3))),
        job_of("lonely", norm, (whole(1), None, None)),
        job_of("two of three", norm, (whole(1), whole(1), Part((((0, 8),),)))),
    ]
    locations = write(jobs, tmp_path / "out")
    assert locations["norm"] == (Location(SHARED, 0, 8192),) * 3
    assert locations["lonely"] == (Location("rank0.bin", 4096, 8192), None, None)
    assert locations["two of three"][:2] == (Location(SHARED, 8192, 8192),) * 2
    assert locations["two of three"][2] == Location("rank2.bin", 4096, 16)
    assert {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()} == {
        SHARED: 16384,
        "rank0.bin": 12288,
        "rank1.bin": 1344,
        "rank2.bin": 4112,
    }


def test_a_bias_counts_on_one_rank_and_is_zero_on_the_others(tmp_path: Path) -> None:
    bias = values((300,))
    job = job_of("bias", bias, (whole(1),) * 3, zeroed=frozenset({1, 2}))
    hold(job, bias, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rank0.bin", "rank1.bin", "rank2.bin"]


def test_files_that_store_nothing_are_not_made(tmp_path: Path) -> None:
    array = values((8, 4))
    write([job_of("w", array, (None, whole(2), None))], tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rank1.bin"]


def test_no_weights_no_files(tmp_path: Path) -> None:
    assert write_weights([], tmp_path, ["rank0.bin"], SHARED) == {}
    assert list(tmp_path.iterdir()) == []


def test_the_space_asked_for_is_the_space_taken(tmp_path: Path) -> None:
    array = values((100, 60))
    parts = tuple(KINDS["columns"](array.shape, rank, 2) for rank in range(2))
    jobs = [job_of("a", array, parts), job_of("b", array, (whole(2),) * 2), job_of("c", array, parts)]
    write(jobs, tmp_path / "out")
    sizes = [-(-path.stat().st_size // 4096) * 4096 for path in (tmp_path / "out").iterdir()]
    assert stored_bytes(jobs, 2) == sum(sizes)


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    array, seen = values((30, 20)), []
    jobs = [job_of(name, array, (whole(2),)) for name in "abc"]
    write_weights(jobs, tmp_path, ["rank0.bin"], SHARED, lambda done, total: seen.append((done, total)))
    assert seen == [(1200, 3600), (2400, 3600), (3600, 3600)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("long_bytes", [1, 1 << 40])
def test_tensors_larger_than_a_block(
    kind: str, long_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With blocks of four pages every loop turns many times; both ways of copying give the same bytes."""
    monkeypatch.setattr(copying, "BLOCK_BYTES", 8 * 4096)
    monkeypatch.setattr(copying, "LONG_BYTES", long_bytes)
    shape = (150, 777)
    array = values(shape)
    parts = tuple(KINDS[kind](shape, rank, 4) for rank in range(4))
    hold(in_file(job_of("w", array, parts), tmp_path / "source"), array, tmp_path / "out")


@st.composite
def cut_tensors(draw: st.DrawFn) -> tuple[str, tuple[int, ...], tuple[Part | None, ...]]:
    dtype = draw(st.sampled_from(["float16", "int4", "uint2", "bool", "float64"]))
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    parts: list[Part | None] = []
    for _ in range(draw(st.integers(1, 3))):
        axes = []
        for size in shape:
            held = draw(st.none() | st.lists(st.integers(0, size - 1), min_size=1, max_size=size))
            axes.append(None if held is None else ranges_of(np.array(held, np.int64)))
        parts.append(draw(st.sampled_from([None, Part(tuple(axes)), Part(tuple(axes))])))
    return dtype, shape, tuple(parts)


counter = itertools.count()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=cut_tensors(), small=st.booleans(), long_bytes=st.sampled_from([1, 64, 1 << 40]))
def test_any_cut_of_any_axes(
    cut: tuple[str, tuple[int, ...], tuple[Part | None, ...]], small: bool, long_bytes: int, tmp_path: Path
) -> None:
    dtype, shape, parts = cut
    array = values(shape, 1 if dtype == "bool" else BITS[dtype]).astype(WIDE[max(8, BITS[dtype])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "LONG_BYTES", long_bytes)
        if small:
            patch.setattr(copying, "BLOCK_BYTES", 8 * 4096)
        hold(job_of("w", array, parts, dtype), array, tmp_path / f"out{next(counter)}")


def test_equally_spaced_pieces_are_one_group() -> None:
    heads = [(start, start + 64) for start in range(0, 4096, 192)]
    assert len(list(geometry.even_columns(heads))) == 1
    assert len(list(geometry.even_columns([*heads, (5000, 5064), (5100, 5101)]))) == 3


def test_a_part_seen_as_whole_is_whole() -> None:
    assert is_whole((3, 4), Part((None, ((0, 2), (2, 4)))))


def test_large_sources_leave_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "sysconf", lambda name: 16)
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, *rest: forgotten.append(rest))
    array = values((30, 20))
    hold(in_file(job_of("w", array, (whole(2),)), tmp_path / "source"), array, tmp_path / "out")
    assert forgotten == [(13, 1200, os.POSIX_FADV_DONTNEED)]


MEMORY = """
import re, sys, threading, time
from pathlib import Path
from tpcompile.weights.ranges import Part
from tpcompile.weights.source import FileBytes
from tpcompile.weights.writer import WeightJob, write_weights

folder, peak, done = Path(sys.argv[1]), [0], threading.Event()

def watch():
    while not done.wait(0.005):
        status = Path("/proc/self/status").read_text()
        peak[0] = max(peak[0], sum(map(int, re.findall(r"Rss(?:Anon|Shmem):\\s+(\\d+)", status))))

source = folder / "source"
with source.open("wb") as file:
    file.truncate(400 << 20)
watcher = threading.Thread(target=watch)
watcher.start()
columns = tuple(Part((None, ((start, start + 2048),))) for start in range(0, 8192, 2048))
rows = tuple(Part((((start, start + 3200), (9600 - start, 12800 - start)), None)) for start in range(0, 12800, 3200))
jobs = [
    WeightJob(name, "float16", (12800, 8192), FileBytes(source, offset, 200 << 20), parts)
    for name, offset, parts in (("columns", 0, columns), ("rows", 200 << 20, rows))
]
write_weights(jobs, folder, [f"rank{rank}" for rank in range(4)], "shared")
done.set()
watcher.join()
print(peak[0])
"""


def test_memory_does_not_grow_with_the_tensors(tmp_path: Path) -> None:
    """Two tensors of 210 MB at once; the bar of the project is 150 MB, the interpreter with numpy included."""
    child = [sys.executable, "-c", MEMORY, str(tmp_path)]
    root = Path(__file__).parents[2]
    printed = subprocess.run(child, cwd=root, check=True, capture_output=True, text=True, timeout=120).stdout
    assert 20_000 < int(printed) < 150_000
