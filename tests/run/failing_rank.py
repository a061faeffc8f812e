"""tprun with one rank that fails on purpose: `failing_rank.py HOW RANK STEP COLLECTIVE TPRUN-ARGUMENTS…`."""

from __future__ import annotations

import os
import signal
import sys
import time

from tpcompile.run import tprun
from tpcompile.run.watchdog import Watchdog


def fail(how: str) -> None:
    if how == "raise":
        raise RuntimeError("injected")
    if how == "exit":
        sys.exit(0)
    if how == "vanish":
        os._exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def main() -> int:
    how, (rank, step, collective) = sys.argv[1], map(int, sys.argv[2:5])
    waits = Watchdog.waits

    def waits_or_fails(self: Watchdog, what: str, *, loading: bool = False) -> None:
        world = self.world
        if (world.rank, world.step, world.joined) == (rank, step, collective):
            fail(how)
        waits(self, what, loading=loading)

    Watchdog.waits = waits_or_fails  # type: ignore[method-assign]
    return tprun.main(sys.argv[5:])


if __name__ == "__main__":
    sys.exit(main())
