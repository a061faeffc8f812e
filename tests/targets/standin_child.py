"""Stands in for a rank's build: `standin_child.py BEHAVIOUR,BEHAVIOUR,… FD < JOB`, one behaviour per rank.

The way it talks, and ends with its starter, is that of the real one; only the building is acted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tpcompile.errors import Fault, Refused
from tpcompile.targets import build_engine
from tpcompile.targets.build_engine import Job, Tell

BEHAVIOURS = sys.argv[1].split(",")


def act(job: Job, tell: Tell) -> dict[str, Any]:
    """Do as this rank is told."""
    folder, behaviour = Path(job.folder), BEHAVIOURS[job.rank % len(BEHAVIOURS)]
    (folder / f"{job.hidden}.onnx").write_text("half a model")
    tell({"stage": "parsing"})
    if behaviour.startswith("SIG"):
        tell({"node": "/layer.0/attn (Attention)"})
        print("the library's last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), getattr(signal, behaviour))
    if behaviour == "exit":
        os._exit(7)
    if behaviour == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "rank.bin"))
    if behaviour == "refuse":
        raise Refused(Fault("TP707", "node /gelu (BiasGelu)", "TensorRT does not take it", "Do without"))
    tell({"stage": "building"})
    if behaviour == "hang":
        time.sleep(600)
    if behaviour == "alone":  # with a timing cache: what others remember is there, and nobody else is at work
        with (folder / "order.txt").open("a") as order:
            order.write(f"begin {job.rank}\n")
        cache = folder / job.timing_cache
        before = cache.read_text() if cache.exists() else ""
        time.sleep(0.2)
        cache.write_text(before + str(job.rank))
        with (folder / "order.txt").open("a") as order:
            order.write(f"end {job.rank} after {before or 'nobody'}\n")
    content = f"engine of rank {job.rank}, {behaviour}".encode()
    (folder / job.engine).write_bytes(content)
    model = next(folder.glob(f"model_tp*_rank{job.rank}.onnx")).stem
    entry = {
        "file": f"{model}.{job.option.replace('-', '_')}.engine", "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(), "library": job.option.replace("-", "_"), "version": "1.2.3",
        "compute_capability": "8.9", "precision": "float32", "profiles": job.profiles,
        "collectives": job.rank if behaviour == "differ" else 3,
    }  # fmt: skip
    return {
        "entry": entry, "layers": 9, "num_ranks": [4], "lowered": {}, "room": 2560, "misfits": [], "seconds": 0.1,
    }  # fmt: skip


if __name__ == "__main__":
    build_engine.build = act
    sys.exit(build_engine.main(sys.argv[2:]))
