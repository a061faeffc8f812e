"""Runs a module of checks in several gloo processes and tells per check what went wrong, on which rank.

A module of checks has functions `check_…()` that every process runs, and ends with `on_ranks.main(globals())`.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240


def outcomes(module: str, processes: int) -> dict[str, str]:
    """Per check of `module` what went wrong, "" where nothing did."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", module, folder, str(processes)],
            cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": folder},
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        told = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(processes)]
    return {name: "\n".join(f"rank {rank}: {said[name]}" for rank, said in enumerate(told) if said[name])
            for name in told[0]}  # fmt: skip


def names_of_checks(module: Any) -> list[str]:
    """The checks of a module, as `outcomes` names them."""
    return [name for name in vars(module) if name.startswith("check_")]


def main(checks: Mapping[str, Any]) -> None:
    """Fork the ranks, so that torch is imported once, and end with 0 where all of them told their outcomes."""
    folder, processes = Path(sys.argv[1]), int(sys.argv[2])
    children = []
    for rank in range(processes):
        child = os.fork()
        if not child:
            try:
                tell(checks, folder, rank, processes)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))


def tell(checks: Mapping[str, Any], folder: Path, rank: int, processes: int) -> None:
    """Run every check as rank `rank` and write the outcomes."""
    import torch.distributed as dist

    patience = datetime.timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes, timeout=patience
    )
    said = {}
    for name, check in list(checks.items()):  # compiled functions add globals
        if name.startswith("check_"):
            try:
                check()
                said[name] = ""
            except Exception:
                said[name] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()
