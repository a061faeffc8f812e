"""What the writer says and leaves when something is wrong: a text that helps, and no file."""

from __future__ import annotations

import _thread
import errno
import os
import shutil
import threading
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpcompile.errors import Refused
from tpcompile.weights import stage
from tpcompile.weights.ranges import Part, whole
from tpcompile.weights.source import FileBytes, MemoryBytes
from tpcompile.weights.writer import WeightJob, write_weights

Usage = namedtuple("Usage", "total used free")
HALVES = (Part((((0, 4),), None)), Part((((4, 8),), None)))


def job(data: bytes = bytes(64), name: str = "w", dtype: str = "float16", **more: Any) -> WeightJob:
    fields = {"shape": (8, 4), "source": MemoryBytes(data), "parts": HALVES} | more
    return WeightJob(name, dtype, **fields)


def refusal(folder: Path, *jobs: WeightJob) -> str:
    before = sorted(folder.iterdir())
    with pytest.raises(Refused) as caught:
        write_weights(jobs, folder, ["rank0.bin", "rank1.bin"], "shared.bin")
    assert sorted(folder.iterdir()) == before
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_data_of_another_length_than_the_type_and_shape(tmp_path: Path) -> None:
    assert refusal(tmp_path, job(bytes(60))) == (
        "TP401 w: its data has 60 bytes, but float16[8, 4] takes 64. "
        "The model file and its data do not belong together: export it again"
    )


def test_a_file_that_is_too_short(tmp_path: Path) -> None:
    path = tmp_path / "model.data"
    path.write_bytes(bytes(1050))
    assert refusal(tmp_path, job(source=FileBytes(path, 1000, 64))) == (
        f"TP402 {path}: the file has 1,050 bytes, but the model says that bytes 1,000 to 1,064 hold weight 'w'. "
        "The file was cut short or is still being copied: fetch it again"
    )


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.data"
    path.write_bytes(bytes(1064))
    monkeypatch.setattr(os, "preadv", lambda descriptor, into, at: os.truncate(path, 9) or 0)
    assert refusal(tmp_path, job(source=FileBytes(path, 1000, 64))) == (
        f"TP402 {path}: the file has 9 bytes, but the model says that bytes 1,000 to 1,064 hold weight 'w'. "
        "The file was cut short or is still being copied: fetch it again"
    )


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert refusal(tmp_path, job(source=FileBytes(tmp_path / "gone", 0, 64))) == (
        f"TP402 {tmp_path}/gone: weight 'w' cannot be read: No such file or directory. "
        "Put the model's data files back beside it and make them readable"
    )


def test_a_file_that_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / "model.data", os.open
    path.write_bytes(bytes(64))

    def guarded(target: Any, *rest: Any) -> int:
        if target == path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(target, *rest)

    monkeypatch.setattr(os, "open", guarded)
    assert refusal(tmp_path, job(source=FileBytes(path, 0, 64))) == (
        f"TP402 {path}: weight 'w' cannot be read: Permission denied. "
        "Put the model's data files back beside it and make them readable"
    )


def test_all_bad_sources_are_told_at_once(tmp_path: Path) -> None:
    text = refusal(tmp_path, job(bytes(60), "a"), job(name="b"), job(bytes(65), "c"))
    assert [line[:8] for line in text.splitlines()] == ["TP401 a:", "TP401 c:"]


def test_a_type_without_a_width(tmp_path: Path) -> None:
    assert refusal(tmp_path, job(dtype="string")) == (
        "TP403 w: elements of type 'string' have no known number of bits. "
        "Weights are numbers or booleans: take this tensor out of the model's weights"
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, calls = os.pwrite, []

    def full(descriptor: int, data: Any, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(number, os.strerror(number))
        return written(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 1 << 40, 1234))
    text = refusal(tmp_path, job())
    assert text in {
        f"TP405 {tmp_path}/rank{rank}.bin: the disk is full: 32 bytes are needed, 1,234 are free. "
        "Free some space, or choose an output on another disk"
        for rank in (0, 1)
    }


def test_a_disk_that_fills_up_at_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert refusal(tmp_path, job()).startswith(f"TP405 {tmp_path}/rank0.bin: the disk is full: 32 bytes are needed, ")


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, data: Any, offset: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", broken)
    text = ".bin: cannot write: Input/output error. Choose an output on a local disk that you may write to"
    assert refusal(tmp_path, job()) in {f"TP406 {tmp_path}/rank{rank}{text}" for rank in (0, 1)}


def test_a_file_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rank1.bin").write_text("mine")
    assert refusal(tmp_path, job()) == (
        f"TP406 {tmp_path}/rank1.bin: cannot write: File exists. Choose an output on a local disk that you may write to"
    )
    assert (tmp_path / "rank1.bin").read_text() == "mine"


def test_a_link_in_the_place_of_an_output_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "rank0.bin").symlink_to(tmp_path / "elsewhere")
    assert refusal(tmp_path, job()).startswith(f"TP406 {tmp_path}/rank0.bin: cannot write: File exists.")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["../rank0.bin", "/tmp/rank0.bin", "a/b", "..", "", "a\\b", "a\0b"])
def test_file_names_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    for files, shared in ([name, "rank1.bin"], "shared.bin"), (["rank0.bin", "rank1.bin"], name):
        with pytest.raises(ValueError) as caught:
            write_weights([job()], tmp_path, files, shared)
        assert str(caught.value) == f"weights are stored in plain files of one folder, not in {name!r}"


def test_jobs_that_do_not_fit_the_ranks(tmp_path: Path) -> None:
    def wrong(*jobs: WeightJob, shared: str = "shared.bin") -> str:
        with pytest.raises(ValueError) as caught:
            write_weights(jobs, tmp_path, ["rank0.bin", "rank1.bin"], shared)
        assert not list(tmp_path.iterdir())
        return str(caught.value)

    assert wrong(job(), job()) == "two jobs are named 'w'"
    assert wrong(job(parts=HALVES[:1])) == "w: 1 parts for 2 ranks"
    assert wrong(job(parts=(HALVES[0], None), zeroed=frozenset({1}))) == "w: rank 1 is to store zeros but has no part"
    names = "['rank0.bin', 'rank1.bin', 'rank1.bin']"
    assert wrong(job(), shared="rank1.bin") == f"the rank files and the shared file need distinct names, got {names}"


@pytest.mark.parametrize("at", ["open", "write"])
def test_file_systems_without_direct_writes(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EINVAL at opening or at the first write: the same bytes go through the page cache."""
    opened, written, direct = os.open, os.pwrite, set()

    def open_(path: Any, flags: int, *mode: int) -> int:
        descriptor = opened(path, flags, *mode)
        if flags & os.O_DIRECT:
            if at == "open":
                os.close(descriptor)
                raise OSError(errno.EINVAL, "Invalid argument")
            direct.add(descriptor)
        return descriptor

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        if descriptor in direct:
            direct.discard(descriptor)
            raise OSError(errno.EINVAL, "Invalid argument")
        return written(descriptor, data, offset)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "pwrite", pwrite)
    data = np.random.default_rng(0).bytes(400_000)
    parts = tuple(Part((held,)) for held in (((0, 100_000),), ((100_000, 200_000),)))
    write_weights([job(data, shape=(200_000,), parts=parts)], tmp_path, ["rank0.bin", "rank1.bin"], "shared.bin")
    assert (tmp_path / "rank0.bin").read_bytes() + (tmp_path / "rank1.bin").read_bytes() == data
    assert not direct


def test_short_writes_are_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: written(descriptor, data[:4096], at))
    data = np.random.default_rng(0).bytes(80_000)
    part = (whole(1), None)
    write_weights([job(data, shape=(40_000,), parts=part)], tmp_path, ["rank0.bin", "rank1.bin"], "shared.bin")
    assert (tmp_path / "rank0.bin").read_bytes() == data


def test_an_interrupt_stops_both_threads_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = stage.OutputFile.write, []

    def slow(self: stage.OutputFile, pages: Any, offset: int) -> None:
        calls.append(offset)
        if len(calls) == 4:
            _thread.interrupt_main()
        time.sleep(0.05)
        write(self, pages, offset)

    monkeypatch.setattr(stage.OutputFile, "write", slow)
    data = np.random.default_rng(0).bytes(4096)
    jobs = [job(data, f"w{index}", shape=(2048,), parts=(whole(1), None)) for index in range(1000)]
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        write_weights(jobs, tmp_path, ["rank0.bin", "rank1.bin"], "shared.bin")
    assert time.monotonic() - began < 5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights")]
    assert len(calls) < 20
    assert not list(tmp_path.iterdir())


def test_open_files_are_closed_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    test_a_disk_that_fails(tmp_path, monkeypatch)
    monkeypatch.undo()
    write_weights([job()], tmp_path, ["rank0.bin", "rank1.bin"], "shared.bin")
    assert len(os.listdir("/proc/self/fd")) == before
