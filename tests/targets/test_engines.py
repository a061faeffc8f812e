"""Engines of all ranks: deaths are told and take nothing along, all of a bundle's engines appear or none.

The building itself is acted (standin_child.py); real engines are in test_real_engines.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.plan.models import TWO_LAYERS, model
from tests.run import handmade
from tpcompile import api
from tpcompile.bundle.manifest import Manifest, ShapeRange
from tpcompile.bundle.write import locked
from tpcompile.cli import main
from tpcompile.errors import Refused
from tpcompile.targets import engines, rank_builds
from tpcompile.targets.engines import BuildRequest, build_engines
from tpcompile.targets.profiles import Wishes
from tpcompile.targets.tensorrt import LIBRARIES, Library, find_library, gpu_capability

STANDIN = Path(__file__).with_name("standin_child.py")
AHEAD, ON_GPU = LIBRARIES
INSIDE = "This is a crash inside TensorRT: try another version of it, or run the bundle without an engine"


def child(*behaviours: str) -> list[str]:
    return [sys.executable, str(STANDIN), ",".join(behaviours)]


def build(folder: Path, *behaviours: str, library: Library = AHEAD, timeout_s: float = 60) -> Manifest:
    request = BuildRequest(library, Wishes({}), timeout_s=timeout_s)
    return build_engines(folder, Manifest.read(folder), request, child=child(*behaviours)).manifest


def failure(folder: Path, *behaviours: str, timeout_s: float = 60) -> list[str]:
    with pytest.raises(Refused) as caught:
        build(folder, *behaviours, timeout_s=timeout_s)
    return str(caught.value).splitlines()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return handmade.mlp(tmp_path / "b", 4)[0]


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    return handmade.mlp(tmp_path / "b", 2)[0]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_engines_of_all_ranks_are_written_down(bundle: Path) -> None:
    before, told = content(bundle), []
    request = BuildRequest(AHEAD, Wishes({}, ({"x": ShapeRange((1, 12), (2, 12), (4, 12))},)))
    found = build_engines(
        bundle, Manifest.read(bundle), request, lambda what, done, total: told.append((what, done, total)), child("ok")
    )
    assert found.notes == ()
    made = found.manifest
    assert made == Manifest.read(bundle)
    for rank, entry in enumerate(made.ranks):
        (engine,) = entry.engines
        assert engine.file == f"model_tp4_rank{rank}.tensorrt_rtx.engine"
        assert (bundle / engine.file).read_bytes() == f"engine of rank {rank}, ok".encode()
        assert engine.profiles == ({"x": ShapeRange((1, 12), (2, 12), (4, 12))},)
        assert (engine.version, engine.compute_capability, engine.collectives) == ("1.2.3", "8.9", 3)
        stages = [(what.partition(": ")[2], done, total) for what, done, total in told if f"rank {rank}" in what]
        assert stages in ([("building", 3, 5), ("done", 5, 5)], [("parsing", 2, 5), ("building", 3, 5), ("done", 5, 5)])
    after = content(bundle)
    assert {name: after[name] for name in before if name != "bundle.json"} == {
        name: held for name, held in before.items() if name != "bundle.json"
    }
    assert set(after) == set(before) | {entry.engines[0].file for entry in made.ranks}


def test_deaths_of_all_ranks_are_told_together(bundle: Path) -> None:
    before = content(bundle)
    crash = (
        "node /layer.0/attn (Attention): the process that built it was ended by {}, while parsing; its last words: the "
        f"library's last words. {INSIDE}"
    )
    assert failure(bundle, "SIGFPE", "SIGSEGV", "exit", "ok") == [
        f"TP710 rank 0, {crash.format('SIGFPE')}",
        f"TP710 rank 1, {crash.format('SIGSEGV')}",
        "TP710 rank 2: the process that built it ended with exit code 7, while parsing. Please report this, with the "
        "model",
    ]
    assert content(bundle) == before


def test_what_the_system_kills_for_memory(bundle: Path) -> None:
    assert failure(bundle, "ok", "SIGKILL") == [
        "TP710 ranks 1, 3, node /layer.0/attn (Attention): the process that built it was killed by SIGKILL, while "
        "parsing. The system does so when memory runs out: free some, or build on another machine"
    ]


def test_a_disk_that_is_full(bundle: Path) -> None:
    before = content(bundle)
    assert failure(bundle, "ok", "full") == [
        "TP715 ranks 1, 3, rank.bin: cannot be read or written: No space left on device. Free space, or mend the disk"
    ]
    assert content(bundle) == before


def test_what_all_ranks_say_is_said_once(bundle: Path) -> None:
    assert failure(bundle, "refuse") == [
        "TP707 ranks 0, 1, 2, 3, node /gelu (BiasGelu): TensorRT does not take it. Do without"
    ]


def test_a_build_that_takes_too_long(bundle: Path) -> None:
    before = content(bundle)
    assert failure(bundle, "ok", "ok", "hang", "refuse", timeout_s=4) == [
        "TP711 rank 2: building took more than 4 s, while building. Give it more with --engine-timeout SECONDS, or "
        "find out what it does",
        "TP707 rank 3, node /gelu (BiasGelu): TensorRT does not take it. Do without",
    ]
    assert content(bundle) == before


def test_ranks_that_turn_out_differently(bundle: Path) -> None:
    assert failure(bundle, "differ") == [
        "TP712 engines: ranks differ in collectives: 0, 1, 2, 3. Give --profile or --sizes that fit all; else report "
        "this"
    ]


def test_a_failure_leaves_earlier_engines(pair: Path) -> None:
    build(pair, "first")
    before = content(pair)
    failure(pair, "ok", "SIGSEGV")
    assert content(pair) == before
    assert build(pair, "second") == Manifest.read(pair)
    assert (pair / "model_tp2_rank1.tensorrt_rtx.engine").read_bytes() == b"engine of rank 1, second"


def test_engines_of_another_library_stay(pair: Path) -> None:
    build(pair, "ok", library=ON_GPU)
    both = build(pair, "ok")
    assert [engine.library for engine in both.ranks[1].engines] == ["tensorrt", "tensorrt_rtx"]
    assert build(pair, "again", library=ON_GPU) == Manifest.read(pair)


def test_bundle_json_never_names_an_engine_that_is_not_there(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any moment between the first rename and the last, a bundle can be read."""
    build(pair, "first")
    replace, moves, stop = Path.replace, 0, 0

    def interrupted(path: Path, target: Path) -> Path:
        nonlocal moves
        moves += 1
        if moves == stop:
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    for stop in range(1, 5):  # bundle.json without the engines, two engines, bundle.json with them
        moves, folder = 0, shutil.copytree(pair, tmp_path / str(stop))
        with pytest.raises(KeyboardInterrupt):
            build(folder, "another length")
        Manifest.read(folder)
        assert not [name for name in content(folder) if name.startswith(".")]
    stop = 0
    assert build(pair, "another length") == Manifest.read(pair)
    assert moves == 8  # of the last interrupted build and this one


def test_k10_builds_that_share_a_timing_cache_run_one_after_another(bundle: Path) -> None:
    build(bundle, "alone", library=ON_GPU)
    assert (bundle / "order.txt").read_text().splitlines() == [
        line
        for rank, earlier in enumerate(["nobody", "0", "01", "012"])
        for line in (f"begin {rank}", f"end {rank} after {earlier}")
    ]
    assert not [name for name in content(bundle) if "timing" in name]


def test_no_more_builds_at_a_time_than_memory_holds(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest.read(bundle)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    for free, expected in ((1 << 40, 4), (rank_builds.LIBRARY_BYTES * 5 // 2, 2), (1000, 1)):
        monkeypatch.setattr(rank_builds, "free_memory", lambda free=free: free)
        assert rank_builds.builds_at_a_time(manifest, AHEAD) == expected
    assert rank_builds.builds_at_a_time(manifest, ON_GPU) == 1
    monkeypatch.undo()
    assert rank_builds.free_memory() > 1 << 20


def test_two_builds_in_one_bundle(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpcompile.targets.tensorrt.find_spec", lambda name: name)
    with locked(pair), pytest.raises(Refused) as caught:
        api.load(pair).build_engines("tensorrt-rtx")
    assert str(caught.value) == (
        f"TP713 {pair}: another process builds or replaces something in it. Wait until it is done"
    )


STARTER = """
import sys
from pathlib import Path
from tpcompile.bundle.manifest import Manifest
from tpcompile.targets.engines import BuildRequest, build_engines
from tpcompile.targets.profiles import Wishes
from tpcompile.targets.tensorrt import LIBRARIES
folder = Path(sys.argv[1])
build_engines(folder, Manifest.read(folder), BuildRequest(LIBRARIES[0], Wishes({})), child=sys.argv[2:])
"""


def descendants(parent: int) -> list[int]:
    """Processes that stand-ins of this parent run in."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                named = str(STANDIN).encode() in (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if named and stat[0] != "Z" and int(stat[1]) == parent:
                found.append(int(entry.name))
    return found


def alive(process: int) -> bool:
    try:
        return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(ready: Callable[[], bool], limit_s: float = 30) -> bool:
    end = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_builds_end_with_what_started_them(how: signal.Signals, pair: Path) -> None:
    before = content(pair)
    started = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(pair), *child("hang")],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert until(lambda: len([*pair.glob(".engine-*.onnx")]) >= 1)
        builds = descendants(started.pid)
        assert builds
        started.send_signal(how)
        started.wait(30)
        assert until(lambda: not any(map(alive, builds))), "a build is left"
    finally:
        started.kill()
        started.wait(30)
    if how is signal.SIGINT:
        assert content(pair) == before
    build(pair, "ok")  # the next build removes what a killed one left
    assert not [name for name in content(pair) if name.startswith(".")]


def test_a_library_that_is_not_there(
    pair: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tpcompile.targets.tensorrt.find_spec", lambda name: None)
    said = {
        "tensorrt-rtx": "the Python module tensorrt_rtx is not installed. Run `pip install 'tpcompile[rtx]'`",
        "tensorrt": "the Python module tensorrt is not installed. Run `pip install 'tensorrt>=10.16'`",
        "openvino": "there is no such library. Use tensorrt-rtx or tensorrt",
    }
    for option, text in said.items():
        assert main(["engine", str(pair), "--engine", option]) == 2
        assert capsys.readouterr().err == f"TP704 --engine {option}: {text}\n"


@pytest.mark.skipif(gpu_capability() is not None, reason="this machine has a GPU")
def test_a_library_that_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpcompile.targets.tensorrt.find_spec", lambda name: name)
    with pytest.raises(Refused) as caught:
        find_library("tensorrt")
    assert str(caught.value) == (
        "TP705 --engine tensorrt: tensorrt times its kernels on the GPU that an engine is for, and this machine shows "
        "none. Build where the engines will run, or use --engine tensorrt-rtx, which builds without a GPU"
    )
    assert find_library("tensorrt-rtx") == AHEAD


def test_collectives_of_another_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "TP714 --dialect onnxruntime: its collectives are those of ONNX Runtime, which TensorRT does not read. Compile "
        "without --dialect to build engines"
    )
    monkeypatch.setattr("tpcompile.targets.tensorrt.find_spec", lambda name: name)
    with pytest.raises(Refused) as caught:
        api.compile(tmp_path / "m.onnx", 2, engine="tensorrt-rtx", dialect="onnxruntime")
    assert str(caught.value) == said
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    bundle = api.compile(tmp_path / "m.onnx", 2, tmp_path / "out", dialect="onnxruntime")
    with pytest.raises(Refused) as caught:
        bundle.build_engines("tensorrt-rtx")
    assert str(caught.value) == said


def test_profiles_without_an_engine(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        api.compile(tmp_path / "m.onnx", 2, profiles={"x": ((1,), (1,), (1,))})
    assert str(caught.value) == (
        "TP119 --profile: it concerns engines, and none is to be built. Add --engine, or leave it out"
    )


def test_compiling_with_engines_writes_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    monkeypatch.setattr("tpcompile.targets.tensorrt.find_spec", lambda name: name)
    monkeypatch.setattr(engines.build_engines, "__defaults__", (None, child("ok", "SIGSEGV")))
    with pytest.raises(Refused, match="TP710 rank 1"):
        api.compile(tmp_path / "m.onnx", 2, tmp_path / "out", engine="tensorrt-rtx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    monkeypatch.setattr(engines.build_engines, "__defaults__", (None, child("ok")))
    made = api.compile(tmp_path / "m.onnx", 2, tmp_path / "out", engine="tensorrt-rtx")
    assert json.loads((tmp_path / "out" / "bundle.json").read_text())["ranks"][1]["engines"][0]["version"] == "1.2.3"
    assert made.manifest == Manifest.read(tmp_path / "out")
