"""Draw decoders of any sizes, written in any way, on any number of ranks: `python -m tests.degrees SEED MINUTES`."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.degrees.checked import faults
from tests.degrees.decoders import Decoder

HEADS = [
    (14, 14),
    (14, 2),
    (14, 7),
    (6, 6),
    (6, 2),
    (6, 3),
    (20, 20),
    (20, 5),
    (20, 4),
    (12, 1),
    (7, 7),
    (7, 1),
    (3, 3),
]
HEADS += [(15, 5), (15, 3), (10, 5), (10, 2), (9, 3), (5, 5), (5, 1), (28, 4), (24, 3), (16, 2), (21, 7), (8, 8)]


def drawn(chance: random.Random) -> tuple[int, Decoder]:
    """(tp, decoder), its FFN and vocabulary as wide beside its heads as in models that people train."""
    heads, kv_heads = chance.choice(HEADS)
    written: Any = chance.choice(["plain", "onnx", "gqa", "packed"])
    grouped = written in ("gqa", "packed")
    head_size = 16 if grouped else chance.choice([4, 6, 8, 10, 16])
    width = heads * head_size
    shape = Decoder(
        heads,
        kv_heads,
        head_size,
        hidden=width + chance.choice([0, 4]),
        ffn=chance.choice([3, 5, 7]) * width // 2 + chance.choice([0, 1, 3]),
        vocabulary=width + chance.choice([503, 997, 1000, 1021]),
        written=written,
        fused=not grouped and chance.random() < 0.4,
        tied=chance.random() < 0.4,
        head_norms=not grouped and chance.random() < 0.4,
        biases=chance.random() < 0.5,
        caches=grouped or chance.random() < 0.6,
    )
    return chance.choice([2, 3, 4, 5, 6, 7, 8]), shape


def main(seed: int, minutes: float) -> int:
    """Check decoders until the time is over; prints those at fault and how many there were."""
    chance, end, count, wrong = random.Random(seed), time.monotonic() + 60 * minutes, 0, 0
    while time.monotonic() < end:
        tp, shape = drawn(chance)
        with tempfile.TemporaryDirectory() as folder:
            found = faults(shape, tp, Path(folder) / "bundle")
        count, wrong = count + 1, wrong + bool(found)
        if found:
            print(f"tp {tp} {shape}:", "; ".join(found), flush=True)
    print(f"{count} decoders drawn from seed {seed}, {wrong} at fault")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
