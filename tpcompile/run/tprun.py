"""`mpirun -n N tprun BUNDLE`: one rank of a run. It never ends without ending the others where it must."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tpcompile.errors import TpcompileError
from tpcompile.run.launch import add_run_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank; returns 0 or ends the process, and with it all ranks, with the exit code of the failure."""
    parser = argparse.ArgumentParser(prog="tprun", description="Run one rank of a bundle; start it with mpirun.")
    add_run_arguments(parser)
    arguments = parser.parse_args(argv)
    from tpcompile.run import mpi, one_rank  # after parsing: --help answers at once

    try:
        world = mpi.start()
    except TpcompileError as error:
        print(f"tprun: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    world.shares_threads = True
    try:
        one_rank.run_rank(arguments, world)
    except BaseException as error:
        # SystemExit too: a rank that leaves in silence would hang the others, and itself in MPI's own exit.
        return one_rank.end_all(world, error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
