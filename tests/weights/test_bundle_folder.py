"""A bundle appears whole or not at all, and nothing else is ever replaced."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from tpcompile.bundle.write import BundleFolder, check_target, require_space
from tpcompile.errors import Refused

ROOT = Path(__file__).parents[2]
Usage = namedtuple("Usage", "total used free")


def make_bundle(place: Path, text: str = "{}") -> None:
    place.mkdir()
    (place / "bundle.json").write_text(text)
    (place / "rank0.bin").write_text("old")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "model.tp2"
    with BundleFolder(target, force=False) as folder:
        (folder / "bundle.json").write_text("{}")
        assert folder.parent == tmp_path
        assert not target.exists()
    assert names(tmp_path) == ["model.tp2"]
    assert names(target) == ["bundle.json"]
    assert target.stat().st_mode & 0o777 == 0o777 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_nothing_stays_behind(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), BundleFolder(tmp_path / "out", force=False) as folder:
        (folder / "rank0.bin").write_text("half")
        raise error
    assert names(tmp_path) == []


def test_an_old_bundle_is_replaced_by_force(tmp_path: Path) -> None:
    make_bundle(tmp_path / "out")
    with BundleFolder(tmp_path / "out", force=True) as folder:
        (folder / "bundle.json").write_text("new")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["bundle.json"]
    assert (tmp_path / "out" / "bundle.json").read_text() == "new"


def test_an_empty_folder_is_replaced_by_force(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with BundleFolder(tmp_path / "out", force=True) as folder:
        (folder / "bundle.json").write_text("new")
    assert names(tmp_path / "out") == ["bundle.json"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_old_bundle_survives_a_failure(error: type[BaseException], tmp_path: Path) -> None:
    make_bundle(tmp_path / "out")
    with pytest.raises(error), BundleFolder(tmp_path / "out", force=True):
        raise error
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["bundle.json", "rank0.bin"]


def test_an_old_bundle_comes_back_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(tmp_path / "out")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if ".tmp-" in self.name:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(Refused) as caught, BundleFolder(tmp_path / "out", force=True) as folder:
        (folder / "bundle.json").write_text("new")
    assert str(caught.value) == f"TP415 {tmp_path}/out: cannot make it: Input/output error. Choose another output"
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["bundle.json", "rank0.bin"]


def test_a_failed_bundle_can_be_kept_for_study(tmp_path: Path) -> None:
    make_bundle(tmp_path / "out.failed")
    output = BundleFolder(tmp_path / "out", force=False)
    with pytest.raises(RuntimeError), output as folder:
        output.keep_failed = True
        (folder / "bundle.json").write_text("wrong")
        raise RuntimeError
    assert output.kept == tmp_path / "out.failed"
    assert names(tmp_path) == ["out.failed"]
    assert (output.kept / "bundle.json").read_text() == "wrong"


def test_an_interrupted_bundle_is_not_kept(tmp_path: Path) -> None:
    output = BundleFolder(tmp_path / "out", force=False)
    with pytest.raises(KeyboardInterrupt), output:
        output.keep_failed = True
        raise KeyboardInterrupt
    assert output.kept is None
    assert names(tmp_path) == []


def test_somebody_elses_folder_is_not_replaced_to_keep_a_failed_bundle(tmp_path: Path) -> None:
    (tmp_path / "out.failed").mkdir()
    (tmp_path / "out.failed" / "thesis.txt").write_text("mine")
    output = BundleFolder(tmp_path / "out", force=False)
    with pytest.raises(RuntimeError), output:
        output.keep_failed = True
        raise RuntimeError
    assert output.kept is None
    assert names(tmp_path / "out.failed") == ["thesis.txt"]


def refusal(target: Path, force: bool) -> str:
    with pytest.raises(Refused) as caught, BundleFolder(target, force):
        pytest.fail("was not refused")
    with pytest.raises(Refused) as early:
        check_target(target, force)
    assert str(early.value) == str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_an_existing_output_needs_force(tmp_path: Path) -> None:
    make_bundle(tmp_path / "out")
    text = f"TP411 {tmp_path}/out: exists already. Choose another output, or replace it with --force"
    assert refusal(tmp_path / "out", False) == text


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_no_bundle_is_never_replaced(force: bool, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    assert refusal(tmp_path / "out", force) == (
        f"TP412 {tmp_path}/out: exists and is a folder without bundle.json. "
        "Only an empty folder or one with bundle.json is ever replaced: choose another output"
    )
    assert names(tmp_path / "out") == ["thesis.txt"]


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_a_file_or_a_link_is_never_replaced(kind: str, tmp_path: Path) -> None:
    make_bundle(tmp_path / "real")
    if kind == "file":
        (tmp_path / "out").write_text("mine")
    else:
        (tmp_path / "out").symlink_to("real" if kind == "link" else "nowhere")
    assert refusal(tmp_path / "out", True) == (
        f"TP412 {tmp_path}/out: exists and is a file or a link. "
        "Only an empty folder or one with bundle.json is ever replaced: choose another output"
    )


def test_the_parent_must_be_there(tmp_path: Path) -> None:
    text = f"TP413 {tmp_path}/no: there is no such folder. Make the folder first, or choose another place for 'out'"
    assert refusal(tmp_path / "no" / "out", False) == text


def test_an_output_inside_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    text = f"TP413 {tmp_path}/file: is a file, not a folder. Make the folder first, or choose another place for 'out'"
    assert refusal(tmp_path / "file" / "out", True) == text


def test_an_unwritable_parent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    text = f"TP414 {tmp_path}: you may not write to this folder. Choose an output that you may write"
    assert refusal(tmp_path / "out", False) == text


def test_a_name_that_the_system_refuses(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught, BundleFolder(tmp_path / ("x" * 250), force=False):
        pytest.fail("was not refused")
    assert (
        str(caught.value) == f"TP415 {tmp_path}/{'x' * 250}: cannot make it: File name too long. Choose another output"
    )


def test_a_place_taken_while_we_worked_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught, BundleFolder(tmp_path / "out", force=False):
        make_bundle(tmp_path / "out")
    text = f"TP411 {tmp_path}/out: exists already. Choose another output, or replace it with --force"
    assert str(caught.value) == text
    assert names(tmp_path) == ["out"]


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 90, 10_000))
    require_space(tmp_path, 10_000)
    with pytest.raises(Refused) as caught:
        require_space(tmp_path, 2_000_000)
    assert str(caught.value) == (
        f"TP405 {tmp_path}: the disk is full: 2,000,000 bytes are needed, 10,000 are free. "
        "Free some space, or choose an output on another disk"
    )


CHILD = """
import sys, time
from pathlib import Path
from tpcompile.bundle.write import BundleFolder
with BundleFolder(Path(sys.argv[1]), force=True) as folder:
    (folder / "rank0.bin").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def start_child(target: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(target)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    return child


def test_a_killed_compile_leaves_a_folder_that_the_next_one_removes(tmp_path: Path) -> None:
    child = start_child(tmp_path / "out")
    child.kill()
    child.communicate()
    assert len(names(tmp_path)) == 1
    assert names(tmp_path)[0].startswith(".out.tmp-")
    with BundleFolder(tmp_path / "out", force=False) as folder:
        (folder / "bundle.json").write_text("{}")
    assert names(tmp_path) == ["out"]


def test_an_interrupted_compile_leaves_nothing(tmp_path: Path) -> None:
    child = start_child(tmp_path / "out")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=20)
    assert names(tmp_path) == []


def test_a_running_compile_is_left_alone(tmp_path: Path) -> None:
    child = start_child(tmp_path / "out")
    try:
        with BundleFolder(tmp_path / "out", force=False) as folder:
            (folder / "bundle.json").write_text("{}")
        assert [name[:9] for name in names(tmp_path)] == [".out.tmp-", "out"]
    finally:
        child.kill()
        child.communicate()


def test_a_bundle_moved_aside_by_a_killed_compile_comes_back(tmp_path: Path) -> None:
    make_bundle(tmp_path / ".out.old-12345678")
    with pytest.raises(RuntimeError), BundleFolder(tmp_path / "out", force=True):
        raise RuntimeError
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["bundle.json", "rank0.bin"]


def test_other_names_are_not_touched(tmp_path: Path) -> None:
    for name in (".other.tmp-1", "out.tmp-1", ".out.bak"):
        (tmp_path / name).mkdir()
    with BundleFolder(tmp_path / "out", force=False):
        pass
    assert names(tmp_path) == [".other.tmp-1", ".out.bak", "out", "out.tmp-1"]
