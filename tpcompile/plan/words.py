"""Numbers and operations as people say them, wherever a plan is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SPOKEN = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AllToAll",
    "broadcast": "Broadcast",
}


def bytes_text(count: float) -> str:
    """Bytes for people: 512 B, 4.2 kB, 13.5 MB, 2.1 GB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def time_text(us: float) -> str:
    """Microseconds for people: 0.3 µs, 12 µs, 3.4 ms, 1.2 s."""
    size = us
    for unit in ("µs", "ms", "s"):
        if size < 1000 or unit == "s":
            whole = size >= 100 or (unit == "µs" and (size >= 0.95 or size < 0.05))
            return f"{size:.0f} {unit}" if whole else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def parts_text(blocks: Sequence[int]) -> str:
    """ "4 × 128", or the sizes where they differ: "4, 4, 3, 3"."""
    if len(set(blocks)) == 1:
        return f"{len(blocks)} × {blocks[0]}"
    if len(blocks) <= 4 and blocks[0] < 100:
        return ", ".join(map(str, blocks))
    return f"{len(blocks)} × {blocks[-1]} or {blocks[0]}"


def calls_text(counts: Mapping[str, int]) -> str:
    """ "65 AllReduce and 1 AllGather"; "no collectives" where there are none."""
    return " and ".join(f"{count} {SPOKEN[op]}" for op, count in counts.items() if count) or "no collectives"
