"""tprun on stand-ins for the GPU's libraries: `fake_rank.py STAND-INS TPRUN-ARGUMENTS…`, stand-ins as in `cuda,ort`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.run.gpu import fake_cuda, fake_provider, fake_tensorrt


def main() -> int:
    for name in sys.argv[1].split(","):
        {"cuda": fake_cuda, "ort": fake_provider, "trt": fake_tensorrt}[name].install()
    from tpcompile.run import tprun

    return tprun.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
