"""Nobody waits for ever: a thread that ends all ranks when one waits too long, and says who waits for whom.

MPI itself hangs when a rank raises, exits or computes for ever. Each rank notes where it is on a board that the ranks
of one machine share: the one that waits can name those that did not come, and whoever started the ranks can say where
one was when it was killed.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tpcompile.errors import Fault
from tpcompile.run.mpi import World, host, place

POLL_S = 0.1
GRACE_S = 5.0
"""What `without_python` waits longer than the watchdog, which says more."""

BOARD = "TPCOMPILE_BOARD"
"""Names the board's file where the one who started the ranks made it, to read it when they are gone."""


class Board:
    """Where each rank of this machine is, (step, joined) per rank, in memory that all of them see.

    Ranks on several machines get a board of their own each, which names nobody.
    """

    def __init__(self, world: World) -> None:
        """Collective over all ranks."""
        given = os.environ.get(BOARD, "")
        path = given
        if world.rank == 0 and not given:
            _, path = tempfile.mkstemp(prefix="tpcompile-", dir=memory_folder())
            write_board(path, world.size)
        said = world.exchange([host(), path])
        self.shared = all(machine == said[0][0] for machine, _ in said)
        self.at = open_board(said[0][1]) if self.shared else np.full((world.size, 2), -1)
        world.comm.Barrier()
        if world.rank == 0 and not given:
            os.unlink(path)  # those that have it open keep it

    def note(self, world: World) -> None:
        """Write down where this rank is."""
        self.at[world.rank, 0] = world.step
        self.at[world.rank, 1] = world.joined

    def behind(self, world: World) -> list[tuple[int, str]]:
        """The ranks that are not as far as this one, and where they are."""
        if not self.shared:
            return []
        mine = (world.step, world.joined)
        places = [(int(step), int(joined)) for step, joined in self.at]
        return [(rank, place(*there)) for rank, there in enumerate(places) if there < mine]


def memory_folder() -> str | None:
    """Where files that are only shared memory go; None for the usual temporary folder."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def write_board(path: str, ranks: int) -> None:
    """Make the file of the board of `ranks` ranks, all of them loading; the caller removes it."""
    Path(path).write_bytes(np.full((ranks, 2), -1, np.int64).tobytes())


def open_board(path: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The board in the file `path`, shared with all who open it."""
    return np.memmap(path, np.int64, "r+").reshape(-1, 2).view(np.ndarray)  # a plain array is quicker to write to


@contextmanager
def without_python(limit_s: float) -> Iterator[None]:
    """Within, a library may wait and let no thread of Python run, the watchdog's neither: after that time plus a grace,
    this process ends with a trace of where it was, and mpirun ends the others. 0: no limit.
    """
    if limit_s <= 0:
        yield
        return
    faulthandler.dump_traceback_later(limit_s + GRACE_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class Watchdog:
    """Guards every wait of one rank: `waits(what)` before it, `goes_on()` after it.

    `limit_s` is the time a wait may take (0: no limit); `load_limit_s` the same while loading, when a slow disk may
    hold up one rank. `checks` are asked again and again whether something has gone wrong behind everybody's back: what
    one answers is said, and ends all ranks.
    """

    def __init__(self, world: World, limit_s: float, load_limit_s: float) -> None:
        self.world, self.limit_s, self.load_limit_s = world, limit_s, load_limit_s
        self.board: Board | None = None
        self.checks: list[Callable[[], str | None]] = []
        self._wait: tuple[float, float, str | Callable[[], str]] | None = None
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin_step(self) -> None:
        """Note that this rank begins its next pass over the model."""
        self.world.step += 1
        self.world.joined = 0
        self._note()

    def waits(self, what: str | Callable[[], str], *, loading: bool = False) -> None:
        """This rank is about to wait for others: `what` says in what, at once or when asked."""
        limit = self.load_limit_s if loading else self.limit_s
        self.world.joined += 1
        self._note()
        if limit > 0:
            self._wait = (time.monotonic() + limit, limit, what)

    def goes_on(self) -> None:
        """The wait is over."""
        self._wait = None

    def _note(self) -> None:
        if self.board is not None:
            self.board.note(self.world)

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_S)
            for said in (check() for check in list(self.checks)):
                if said is not None:
                    print(f"[rank {self.world.rank}] {said}", file=sys.stderr, flush=True)
                    self.world.abort(4)
            wait = self._wait
            if wait is not None and time.monotonic() > wait[0] and self._wait is wait:
                what = wait[2] if isinstance(wait[2], str) else wait[2]()
                print(self._complaint(wait[1], what), file=sys.stderr, flush=True)
                self.world.abort(4)

    def _complaint(self, limit_s: float, what: str) -> str:
        late = self.board.behind(self.world) if self.board is not None else []
        missing = "; ".join(f"rank {rank} has not come, it is {there}" for rank, there in late)
        step = "while loading" if self.world.step < 0 else f"at step {self.world.step}"
        remedy = "A rank is slow, stuck or gone: see its messages, or give more time with --timeout"
        fact = f"waited {limit_s:g} s {step} in {what}"
        return f"[rank {self.world.rank}] {Fault('TP610', '', f'{fact}; {missing}' if missing else fact, remedy)}"
