"""Nobody waits for ever: a thread that ends all ranks when one waits too long, and says who waits for whom.

MPI itself hangs when a rank raises, exits or computes for ever. Each rank notes where it is on a board that the ranks
of one machine share, so that the one that waits can name those that did not come.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from tpcompile.run.mpi import World, host

POLL_S = 0.1


class Board:
    """Where each rank of this machine is: (step, collectives joined) per rank, in a file that all map and none sees."""

    def __init__(self, world: World) -> None:
        """Collective over all ranks. Ranks on several machines get a board of their own, which names nobody."""
        self.rank = world.rank
        place = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
        name = tempfile.mkstemp(prefix="tpcompile-", dir=place)[1] if world.rank == 0 else ""
        said = world.exchange([host(), name])
        self.shared = all(other == said[0][0] for other, _ in said)
        shape = (world.size, 2)
        if not self.shared:
            self.at = np.zeros(shape, np.int64)
        elif world.rank == 0:
            self.at = np.memmap(name, np.int64, "w+", shape=shape)
            world.comm.Barrier()
        else:
            world.comm.Barrier()
            self.at = np.memmap(said[0][1], np.int64, "r+", shape=shape)
        world.comm.Barrier()
        if name:
            os.unlink(name)

    def behind(self) -> list[tuple[int, int, int]]:
        """(rank, step, collectives joined) of the ranks that are not as far as this one."""
        if not self.shared:
            return []
        mine = tuple(self.at[self.rank])
        return [(rank, int(step), int(done)) for rank, (step, done) in enumerate(self.at) if (step, done) < mine]


class Watchdog:
    """Guards every wait of one rank: `waits(what)` before it, `goes_on()` after it.

    `limit_s` is the time a wait may take (0: no limit); `load_limit_s` the same while loading, when a slow disk may
    hold up one rank.
    """

    def __init__(self, world: World, limit_s: float, load_limit_s: float) -> None:
        self.world, self.limit_s, self.load_limit_s = world, limit_s, load_limit_s
        self.step = 0
        self.board: Board | None = None
        self._joined = 0
        self._wait: tuple[float, float, str] | None = None
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin_step(self, step: int) -> None:
        """Note that this rank begins to compute step `step` (0 is the first)."""
        self.step, self._joined = step, 0
        self._note()

    def waits(self, what: str, *, loading: bool = False) -> None:
        """This rank is about to wait for others: `what` says in what."""
        limit = self.load_limit_s if loading else self.limit_s
        self._joined += 1
        self._note()
        if limit > 0:
            self._wait = (time.monotonic() + limit, limit, what)

    def goes_on(self) -> None:
        """The wait is over."""
        self._wait = None

    def _note(self) -> None:
        if self.board is not None:
            self.board.at[self.world.rank] = (self.step, self._joined)

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_S)
            wait = self._wait
            if wait is not None and time.monotonic() > wait[0] and self._wait is wait:
                print(self._complaint(wait[1], wait[2]), file=sys.stderr, flush=True)
                self.world.abort(4)

    def _complaint(self, limit_s: float, what: str) -> str:
        late = self.board.behind() if self.board is not None else []
        missing = "; ".join(f"rank {rank} has not come (step {step}, {done} waits done)" for rank, step, done in late)
        return (
            f"[rank {self.world.rank}] TP610 {what}: waited {limit_s:g} s at step {self.step}"
            f"{f'; {missing}' if missing else ' for the other ranks'}. "
            "A rank is slow, stuck or gone: see its messages, or give more time with --timeout."
        )
