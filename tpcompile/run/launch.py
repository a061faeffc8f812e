"""`tpcompile run BUNDLE -n N`: starts mpirun with the settings that work, and makes sense of how it ends."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tpcompile.bundle.manifest import Manifest
from tpcompile.errors import TpcompileError, refuse

LIMIT_S = 60.0
RANK_CODES = (0, 2, 3, 4, 130)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `tpcompile run` and `tprun` share."""
    parser.add_argument("bundle", metavar="BUNDLE", help="folder that `tpcompile MODEL --tp N` wrote")
    best = "what computes: engines, ONNX Runtime on GPUs, or on the CPU (default: the best that all ranks can)"
    parser.add_argument("--backend", choices=["auto", "engine", "cuda", "cpu"], default="auto", help=best)
    replay = "let engines replay steps of equal shapes as CUDA graphs (nothing is gained where shapes change)"
    parser.add_argument("--cuda-graphs", action="store_true", help=replay)
    parser.add_argument("--inputs", metavar="X.npz", help="whole inputs by name")
    parser.add_argument("--outputs", metavar="Y.npz", help="where rank 0 writes the whole outputs")
    parser.add_argument("--steps", type=int, metavar="K", help="decode K tokens greedily after the prompt in --inputs")
    parser.add_argument("--check", metavar="REF.npz", help="compare the outputs with these; exit code 3 if they differ")
    parser.add_argument("--dump", metavar="GLOB", help="write every value of such a name, of each rank, to a folder")
    parser.add_argument("--dump-to", metavar="DIR", help="that folder (default: BUNDLE.dump)")
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
    for name in ("inputs", "outputs", "steps", "check", "dump", "dump-to"):
        value = getattr(arguments, name.replace("-", "_"))
        if value is not None:
            made += [f"--{name}", str(value)]
    made += ["--prepack"] if arguments.prepack else []
    return made + (["--cuda-graphs"] if arguments.cuda_graphs else [])


def run_ranks(command: Sequence[str], ranks: int) -> int:
    """Run `command` on `ranks` ranks, pass on what they say, and return an exit code of ours."""
    from tpcompile.run.mpirun import Ranks, failure  # here: it brings onnxruntime, which --help does without

    started = Ranks(command, ranks)
    try:
        code = started.wait()
    except KeyboardInterrupt:
        return 130
    finally:
        with _deaf():
            started.end()
    if code == 0 or (code in RANK_CODES and started.messages.rank_spoke()):
        return code
    print("\n".join(started.messages.held), file=sys.stderr)
    print(failure(code, started.messages.held, started.places), file=sys.stderr)
    return 4


@contextmanager
def _deaf() -> Iterator[None]:
    """Do not listen to Ctrl-C: a second one must not leave ranks or their files behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
