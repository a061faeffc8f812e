"""Ranks that wait for calls: rank 0 hears them from a session in another process and tells the others."""

from __future__ import annotations

import argparse
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpcompile.errors import Refused, TpcompileError
from tpcompile.run import wire
from tpcompile.run.mpi import World, start
from tpcompile.run.one_rank import end_all
from tpcompile.run.rank import RankRunner, load
from tpcompile.run.tensors import Array

NAP_S = 0.0005
"""How long an idle rank sleeps between looks: MPI itself would wait at full load."""


def main() -> int:
    """One serving rank; it ends when the session closes its side."""
    parser = argparse.ArgumentParser(prog="tpcompile.run.serve")
    parser.add_argument("socket")
    parser.add_argument("bundle")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--load-timeout", type=float, required=True)
    parser.add_argument("--prepack", action="store_true")
    parser.add_argument("--cuda-graphs", action="store_true")
    arguments = parser.parse_args()
    world = start()
    world.shares_threads = True
    try:
        _serve(arguments, world)
        if world.rank == 0:
            shutil.rmtree(Path(arguments.socket).parent, ignore_errors=True)  # the caller may have been killed
    except BaseException as error:
        return end_all(world, error)
    return 0


def _serve(arguments: argparse.Namespace, world: World) -> None:
    caller: socket.socket | None = None
    if world.rank == 0:
        caller = socket.socket(socket.AF_UNIX)
        caller.connect(arguments.socket)
    try:
        limits = {"timeout_s": arguments.timeout, "load_timeout_s": arguments.load_timeout}
        ways = {"prepack": arguments.prepack, "cuda_graphs": arguments.cuda_graphs}
        runner = load(Path(arguments.bundle), **limits, **ways, backend=arguments.backend, world=world)
    except TpcompileError as error:
        _answer(caller, {"faults": _said(error)}, {})
        raise
    _answer(caller, {"ready": True, "backend": str(runner.backend)}, {})
    while True:
        message = _next(caller, world)
        if message is None:
            return
        head, arrays = wire.unpack(message)
        try:
            _answer(caller, {}, _call(runner, head, arrays))
        except Refused as error:  # the same on all ranks, before any of them computed
            _answer(caller, {"faults": _said(error)}, {})


def _call(runner: RankRunner, head: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Array]:
    if head["call"] == "decode":
        return runner.decode(arrays, head["steps"])
    if head["call"] == "extend":
        return runner.extend(head["sequence"], head["outputs"], arrays)
    if head["call"] == "forget":
        runner.forget(head["sequence"])
        return {}
    return runner.run(head["outputs"], arrays)


def _said(error: TpcompileError) -> list[list[str]]:
    return [[fault.code, fault.where, fault.fact, fault.remedy] for fault in error.faults]


def _answer(caller: socket.socket | None, head: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    if caller is not None:
        caller.sendall(wire.pack(head, arrays))


def _next(caller: socket.socket | None, world: World) -> bytearray | None:
    """The next call, on every rank; None where the session is closed."""
    message = wire.receive(caller) if caller is not None else None
    size = np.array([0 if message is None else len(message)], np.int64)
    waiting = world.comm.Ibcast(size, root=0)
    while not waiting.Test():
        time.sleep(NAP_S)
    if not size[0]:
        return None
    shared = np.frombuffer(message if message is not None else bytearray(int(size[0])), np.uint8)
    world.broadcast(shared)
    return bytearray(shared.data) if message is None else message


if __name__ == "__main__":
    sys.exit(main())
