"""Ranks end when what started them does, however it ends: `timeout`, a container's stop and a crash all count."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests import zoo
from tpcompile.cli import main

LONG = "1500"


def ranks_of(bundle: Path) -> list[int]:
    """Processes that run this bundle, mpirun and the command that started it included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(bundle).encode() in words and state != "Z":
                found.append(int(entry.name))
    return found


def wait_until(ready: object, limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if ready():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda how: how.name)
def test_no_rank_outlives_the_command(how: signal.Signals, tmp_path: Path) -> None:
    source, bundle = zoo.save("llama__dynamo__kv", tmp_path / "model.onnx"), tmp_path / "bundle"
    assert main([str(source), "--tp", "2", "-o", str(bundle)]) == 0
    np.savez(tmp_path / "x.npz", input_ids=np.array([[3, 1, 4]], np.int64))
    words = [sys.executable, "-m", "tpcompile.cli", "run", str(bundle), "--inputs", str(tmp_path / "x.npz")]
    started = subprocess.Popen(
        [*words, "--steps", LONG], env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    )
    try:
        assert wait_until(lambda: len(ranks_of(bundle)) >= 4, 60)  # the command, mpirun and two ranks
        time.sleep(0.5)
        started.send_signal(how)
        started.wait(30)
        assert wait_until(lambda: not ranks_of(bundle), 30), "ranks are left"
        assert started.returncode == (-9 if how is signal.SIGKILL else 130)
    finally:
        for process in ranks_of(bundle):
            os.kill(process, signal.SIGKILL)
