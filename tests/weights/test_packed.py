"""Rank files in the safetensors format: bit for bit what numpy cuts, and what the format's own library reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tpcompile.errors import Refused
from tpcompile.weights import safetensors
from tpcompile.weights.layout import WeightJob
from tpcompile.weights.packed import arrange_ranks, write_packed
from tpcompile.weights.ranges import Part, local_shape, take, whole
from tpcompile.weights.source import FileBytes, MemoryBytes

DTYPES = ["float32", "bfloat16", "int8", "bool", "int64", "float16", "float8_e4m3fn"]
SHAPES = [(64, 96), (3, 5), (1024, 32), (7,), (), (2, 3, 1030), (4, 0), (129, 4100)]


def content(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return (np.random.default_rng(seed).normal(size=shape) * 20).astype(np.float32).astype(kind)


def parts(shape: tuple[int, ...], seed: int) -> tuple[Part | None, ...]:
    """For three ranks: cut along an axis in uneven blocks, in two blocks each, or whole; one rank may have nothing."""
    rng = np.random.default_rng(seed)
    axes = [axis for axis, size in enumerate(shape) if size >= 6]
    if not axes or seed % 4 == 0:
        return tuple(whole(len(shape)) if rank or seed % 3 else None for rank in range(3))
    axis = int(rng.choice(axes))
    size = shape[axis]
    first, second = sorted(rng.choice(np.arange(1, size // 2), 2, replace=False).tolist())
    edges, half = [0, first, second, size // 2], size // 2
    made = []
    for rank in range(3):
        blocks = [(edges[rank], edges[rank + 1]), (half + edges[rank], half + edges[rank + 1])]
        made.append(Part(tuple(tuple(blocks) if at == axis else None for at in range(len(shape)))))
    return tuple(made)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[WeightJob], dict[str, np.ndarray[Any, Any]]]:
    """Tensors of every type and shape; some in one file at odd offsets, some in memory."""
    file = tmp_path_factory.mktemp("source") / "model.bin"
    arrays, made, stored = {}, [], b""
    for seed in range(40):
        dtype, shape = DTYPES[seed % len(DTYPES)], SHAPES[seed % len(SHAPES)]
        name = f"layer.{seed}.weight"
        arrays[name] = content(dtype, shape, seed)
        raw = arrays[name].tobytes()
        source = MemoryBytes(raw) if seed % 5 == 0 else FileBytes(file, len(stored), len(raw))
        stored += raw if seed % 5 else b"?"
        zeroed = frozenset({1}) if seed % 7 == 0 else frozenset()
        made.append(WeightJob(name, dtype, shape, source, parts(shape, seed), zeroed))
    file.write_bytes(stored)
    return made, arrays


def wanted(job: WeightJob, array: np.ndarray[Any, Any], rank: int) -> np.ndarray[Any, Any]:
    part = job.parts[rank]
    assert part is not None
    mine = take(array, part)
    return np.zeros_like(mine) if rank in job.zeroed else mine


def written(jobs: list[WeightJob], folder: Path) -> list[Path]:
    texts = [{"format": "pt", "rank": str(rank)} for rank in range(3)]
    names = [f"rank{rank}.safetensors" for rank in range(3)]
    write_packed(jobs, folder, names, arrange_ranks(jobs, texts))
    return [folder / name for name in names]


def test_each_rank_has_its_parts(jobs: Any, tmp_path: Path) -> None:
    made, arrays = jobs
    for rank, path in enumerate(written(made, tmp_path)):
        found, metadata = safetensors.read(path)
        assert metadata == {"format": "pt", "rank": str(rank)}
        assert found.keys() == {job.name for job in made if job.parts[rank] is not None}
        raw = path.read_bytes()
        for job in (job for job in made if job.parts[rank] is not None):
            entry = found[job.name]
            assert isinstance(entry.source, FileBytes)
            array = wanted(job, arrays[job.name], rank)
            assert (entry.dtype, entry.shape) == (job.dtype, local_shape(job.shape, job.parts[rank] or whole(0)))
            assert raw[entry.source.offset : entry.source.offset + entry.source.nbytes] == array.tobytes(), job.name
            assert entry.source.offset % array.dtype.itemsize == 0
            assert entry.source.offset % 4096 == 0 or entry.source.nbytes % 4096


def test_the_format_has_its_own_readers(jobs: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    made, arrays = jobs
    for rank, path in enumerate(written(made, tmp_path)):
        found = library.load_file(path)
        for job in (job for job in made if job.parts[rank] is not None):
            array = wanted(job, arrays[job.name], rank)
            tensor = found[job.name].contiguous()
            raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
            assert raw == array.tobytes() and tuple(tensor.shape) == array.shape, job.name


def test_a_rank_may_have_nothing(tmp_path: Path) -> None:
    job = WeightJob("w", "float32", (2, 3), MemoryBytes(bytes(24)), (whole(2), None))
    write_packed([job], tmp_path, ["a", "b"], arrange_ranks([job], [{}, {}]))
    assert safetensors.read(tmp_path / "b") == ({}, {})


def test_types_that_the_format_has_not() -> None:
    job = WeightJob("w", "int4", (2, 4), MemoryBytes(bytes(4)), (whole(2),))
    with pytest.raises(Refused) as caught:
        arrange_ranks([job], [{}])
    assert str(caught.value) == (
        "TP403 w: there is no type 'int4' in safetensors files. "
        "Keep this tensor in another type: safetensors cannot store it"
    )


def test_a_failed_write_leaves_no_file(jobs: Any, tmp_path: Path) -> None:
    job = WeightJob("w", "float32", (2, 3), FileBytes(tmp_path / "gone", 0, 24), (whole(2), None))
    with pytest.raises(Refused, match=r"^TP402 "):
        written([*jobs[0], WeightJob("w", "float32", (2, 3), job.source, (whole(2),) * 3)], tmp_path)
    assert list(tmp_path.iterdir()) == []


def stored(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    ("header", "fact"),
    [
        (b"{", "its header is no JSON"),
        (b"[" * 100_000, "its header is no JSON"),
        ([], "its header is no JSON object"),
        ({"__metadata__": {"a": 1}}, "its metadata are no texts"),
        ({"w": {"dtype": "F32", "shape": [2]}}, "its header does not say where tensor 'w' lies"),
        ({"w": {"dtype": "F32", "shape": [2, -1], "data_offsets": [0, 8]}},
         "its header does not say where tensor 'w' lies"),
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "the bytes of tensor 'w' are not all there"),
        ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, "the bytes of tensor 'w' are not all there"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path: Path, header: object, fact: str) -> None:
    path = stored(tmp_path / "w.safetensors", header, bytes(8))
    with pytest.raises(Refused) as caught:
        safetensors.read(path)
    assert str(caught.value) == (
        f"TP738 {path}: is no whole safetensors file: {fact}. Copy the file again, or save it again"
    )


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with pytest.raises(Refused) as caught:
        safetensors.read(path)
    assert str(caught.value) == (
        f"TP738 {path}: there is no such file. Put the safetensors file there, or save it again"
    )
    path.write_bytes(b"abc")
    with pytest.raises(Refused) as caught:
        safetensors.read(path)
    assert str(caught.value) == (
        f"TP738 {path}: is no whole safetensors file: its header is longer than the file. "
        "Copy the file again, or save it again"
    )
    stored(path, {"w": {"dtype": "Q3", "shape": [2], "data_offsets": [0, 8]}}, bytes(8))
    with pytest.raises(Refused) as caught:
        safetensors.read(path)
    assert str(caught.value) == (
        f"TP738 {path}: tensor 'w' has the type 'Q3', which is not known here. Save it in a type that torch has"
    )
