"""Whatever happens to one rank, all end within seconds, and the text names the rank and the step."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.run import handmade
from tests.verify.bundles import edit_manifest, edit_rank
from tpcompile.run import arrays
from tpcompile.run.launch import run_ranks
from tpcompile.run.mpirun import environment, mpirun

FAILING = Path(__file__).with_name("failing_rank.py")
TPRUN = [sys.executable, "-m", "tpcompile.run.tprun"]
WORDS = "All ranks end with this one\n"
LOST = "Out of memory or a crash in a library looks like this; see what mpirun says above\n"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with decoders for 2 and 4 ranks, and a prompt."""
    folder = tmp_path_factory.mktemp("work")
    for ranks in (2, 4):
        handmade.decoder(folder / f"b{ranks}", ranks)
    arrays.write(folder / "in.npz", {"ids": np.array([[3, 7, 1]])})
    return folder


def options(work: Path, ranks: int, how: str = "") -> list[str]:
    """What tprun is given; only where a rank sleeps are the others to lose patience soon."""
    limit_s = "3" if how == "sleep" else "30"
    return [str(work / f"b{ranks}"), "--inputs", str(work / "in.npz"), "--steps", "5", "--timeout", limit_s]


def bare(work: Path) -> dict[str, str]:
    """The environment for mpirun without our launcher; what killed ranks leave in shared memory goes to `work`."""
    return environment() | {"OMPI_MCA_btl_sm_backing_directory": str(work)}


def leftovers(work: Path) -> list[str]:
    """Ranks that outlived their run on a bundle in `work`: other tests may run at the same time."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(FAILING).encode() in words and any(word.startswith(str(work).encode()) for word in words):
            found.append(str(place))
    return found


@pytest.mark.parametrize(
    ("how", "ranks", "text"),
    [
        ("raise", 2, "[rank 1] TP612 at step 2, before collective 0: RuntimeError: injected. " + WORDS),
        ("raise", 4, "[rank 1] TP612 at step 2, before collective 0: RuntimeError: injected. " + WORDS),
        ("exit", 2, "[rank 1] TP612 at step 2, before collective 0: SystemExit: 0. " + WORDS),
        ("vanish", 2, "TP612 rank 1, at step 2, before collective 0: ended without a word. " + LOST),
        ("kill", 2, "TP612 rank 1, at step 2, before collective 0: was killed by SIGKILL. " + LOST),
        ("kill", 4, "TP612 rank 1, at step 2, before collective 0: was killed by SIGKILL. " + LOST),
        ("sleep", 2, "[rank 0] TP610 waited 3 s at step 2 in collective 0 of 1, all_reduce(sum) of 'po'; "
         "rank 1 has not come, "
         "it is at step 2, before collective 0. A rank is slow, stuck or gone: see its messages, or give more "
         "time with "
         "--timeout\n"),
    ],
)  # fmt: skip
def test_one_rank_fails(work: Path, capfd: pytest.CaptureFixture[str], how: str, ranks: int, text: str) -> None:
    started = time.monotonic()
    assert run_ranks([sys.executable, str(FAILING), how, "1", "2", "0", *options(work, ranks, how)], ranks) == 4
    assert time.monotonic() - started < 15
    assert text in capfd.readouterr().err
    assert not leftovers(work)


@pytest.mark.parametrize(("how", "code"), [("raise", 4), ("exit", 4), ("sleep", 4), ("kill", 137)])
def test_bare_mpirun_ends_with_our_code(work: Path, how: str, code: int) -> None:
    command = [
        mpirun(),
        "--bind-to",
        "none",
        "-n",
        "2",
        sys.executable,
        str(FAILING),
        how,
        "1",
        "2",
        "0",
        *options(work, 2, how),
    ]
    done = subprocess.run(command, env=bare(work), capture_output=True, text=True, timeout=30, start_new_session=True)
    assert done.returncode == code, done.stderr
    assert "rank 1" in done.stderr
    assert not leftovers(work)


def test_wrong_rank_count(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_ranks([*TPRUN, *options(work, 2)], 3) == 2
    bundle = work / "b2"
    assert (
        f"[rank 0] TP607 {bundle}: this bundle is for 2 ranks, and 3 were started. Start it as `mpirun -n 2 "
        f"tprun {bundle}` "
        f"or as `tpcompile run {bundle} -n 2`\n"
    ) in capfd.readouterr().err


def test_a_bundle_without_mpirun(work: Path) -> None:
    done = subprocess.run([*TPRUN, *options(work, 2)], env=bare(work), capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "this bundle is for 2 ranks, and 1 were started. Start it as `mpirun -n 2 tprun" in done.stderr


def test_torchrun_is_told_what_to_do(work: Path) -> None:
    started = bare(work) | {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    done = subprocess.run([*TPRUN, *options(work, 2)], env=started, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr == (
        "tprun: TP604 tprun: started with WORLD_SIZE=2 (torchrun) but without MPI, which it needs. Start it as "
        "`mpirun -n 2 tprun BUNDLE`\n"
    )


def test_a_rank_file_of_another_compile(work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mixed = tmp_path / "b2"
    shutil.copytree(work / "b2", mixed)
    handmade.mlp(tmp_path / "other", 2)
    model = "model_tp2_rank1.onnx"
    shutil.copy(tmp_path / "other" / model, mixed / model)
    assert run_ranks([*TPRUN, str(mixed), *options(work, 2)[1:]], 2) == 2
    assert (
        f"[rank 0] TP608 rank 1: {mixed / model}: is not the file that bundle.json was written with. Files of "
        "different "
        "compiles are mixed: copy the whole bundle again\n"
    ) in capfd.readouterr().err


ELSEWHERE = """
import os, sys
from tpcompile.run import tprun
folder = sys.argv[1 + int(os.environ["OMPI_COMM_WORLD_RANK"])]
sys.exit(tprun.main([folder, *sys.argv[3:]]))
"""


def ranks_of_two_folders(first: Path, second: Path, work: Path) -> int:
    command = [sys.executable, "-c", ELSEWHERE, str(first), str(second), *options(work, 2)[1:]]
    return run_ranks(command, 2)


def test_machines_with_bundles_of_two_compiles(work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "b2"
    shutil.copytree(work / "b2", other)
    content = json.loads((other / "bundle.json").read_text())
    content["source"]["bytes"] += 1
    (other / "bundle.json").write_text(json.dumps(content))
    assert ranks_of_two_folders(work / "b2", other, work) == 2
    assert (
        "[rank 0] TP608 rank 1: its bundle.json is of another compile than that of rank 0. All ranks need files of one "
        "compile: copy the whole bundle to every machine again\n"
    ) in capfd.readouterr().err


def test_collectives_that_do_not_meet(work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    handmade.mlp(tmp_path / "mlp", 2)
    assert ranks_of_two_folders(work / "b2", tmp_path / "mlp", work) == 2
    assert (
        "[rank 0] TP608 rank 1: collective 0 is all_reduce(sum) of 'p0', on rank 0 all_reduce(sum) of 'po'. "
        "All ranks need "
        "files of one compile: copy the whole bundle to every machine again\n"
    ) in capfd.readouterr().err


def test_branches_that_do_not_meet(work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rank 1 gathers in the other branch: it is refused before anybody waits."""
    bundle, _ = handmade.branching(tmp_path / "b", 2)

    def swap(model: onnx.ModelProto) -> None:
        node = next(node for node in model.graph.node if node.op_type == "If")
        for attribute in node.attribute:
            attribute.name = {"then_branch": "else_branch", "else_branch": "then_branch"}[attribute.name]

    edit_rank(bundle, 1, swap)
    assert run_ranks([*TPRUN, str(bundle), *options(work, 2)[1:]], 2) == 2
    assert f"TP608 rank 1: {bundle / 'bundle.json'}: lists collective 1 as all_gather in groups of all" in (
        capfd.readouterr().err
    )


def drop_collective(content: dict[str, Any]) -> None:
    del content["collectives"][0]


def other_collective(content: dict[str, Any]) -> None:
    content["collectives"][0]["op"] = "all_gather"


def other_groups(content: dict[str, Any]) -> None:
    content["collectives"][0]["groups"] = [[0], [1]]


def rename_output(content: dict[str, Any]) -> None:
    content["outputs"] = {"scores" if n == "logits" else n: entry for n, entry in content["outputs"].items()}
    content["roles"]["logits"] = "scores"


def swap_inputs(content: dict[str, Any]) -> None:
    content["inputs"] = dict(reversed(content["inputs"].items()))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (drop_collective, "lists 0 collectives, and the model of rank 0 runs 1"),
        (other_collective, "lists collective 0 as all_gather in groups of all; it is all_reduce(sum) of 'po' in "
                           "group of all"),
        (other_groups, "lists collective 0 as all_reduce in groups [0] [1]; it is all_reduce(sum) of 'po' in "
                       "group of all"),
        (rename_output, "lists outputs scores, present_k, present_v, and the model of rank 0 has logits, present_k, "
                        "present_v"),
        (swap_inputs, "lists inputs past_v, past_k, positions, mask, ids, and the model of rank 0 has ids, mask, "
                      "positions, past_k, past_v"),
    ],
)  # fmt: skip
def test_an_edited_manifest(
    work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], change: Callable[[dict[str, Any]], None], text: str
) -> None:
    edited = tmp_path / "b2"
    shutil.copytree(work / "b2", edited)
    edit_manifest(edited, change)
    assert run_ranks([*TPRUN, str(edited), *options(work, 2)[1:]], 2) == 2
    said = [
        f"TP608 rank {rank}: {edited / 'bundle.json'}: " + text.replace("rank 0", f"rank {rank}") for rank in (0, 1)
    ]
    remedy = ". It was changed, or belongs to another compile: copy the whole bundle again"
    err = capfd.readouterr().err
    if "rank 0" in text:
        assert all(line + remedy in err for line in said)
    else:
        assert f"TP608 {edited / 'bundle.json'}: {text}{remedy}" in err


def test_a_missing_file_is_said_once(work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "b2"
    shutil.copytree(work / "b2", broken)
    (broken / "rank1.bin").unlink()
    assert run_ranks([*TPRUN, str(broken), *options(work, 2)[1:]], 2) == 2
    said = capfd.readouterr().err
    assert re.findall("^.*TP.*$", said, re.M) == [
        f"[rank 0] TP455 rank 1: {broken / 'rank1.bin'}: the file that rank 1 needs is not there. Copy the "
        "whole bundle "
        "folder, or compile the model again"
    ]


def test_ranks_die_with_mpirun(work: Path) -> None:
    command = [
        mpirun(),
        "--bind-to",
        "none",
        "-n",
        "2",
        sys.executable,
        str(FAILING),
        "sleep",
        "1",
        "1",
        "0",
        *options(work, 2)[:-2],
    ]
    started = subprocess.Popen(command, env=bare(work), stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        until = time.monotonic() + 10
        while len(leftovers(work)) < 3 and time.monotonic() < until:  # mpirun itself has the path among its words
            time.sleep(0.1)
        time.sleep(1)
    finally:
        os.kill(started.pid, 9)
        started.wait()
    until = time.monotonic() + 5
    while leftovers(work) and time.monotonic() < until:
        time.sleep(0.1)
    assert not leftovers(work)
