"""How weights and dimensions are named by pattern: in pins, forbids and `--why`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

AN_AXIS = re.compile(r"\[-?\d\]")
SHOWN_AT_MOST = 3


def named_by(pattern: str, name: str) -> bool:
    """Whether a pattern names a weight ("layers.0.up.weight") or a dimension ("layers.0.up.weight[1]").

    `*`, `?` and sets such as `[ab]` or `[0-9]` mean what they do in a shell. One digit in brackets is an axis, and
    stands for itself: "up*[1]" names the dimensions at axis 1. Axes count from the front, so "up*[-1]" names nothing.
    A name names itself, whatever stands in it.
    """
    return pattern == name or fnmatchcase(name, AN_AXIS.sub(lambda axis: f"[[]{axis[0][1:]}", pattern))


def near(pattern: str, names: Iterable[str]) -> list[str]:
    """A few names that look most like a pattern that matches none, the likest first."""
    known = sorted(set(names))
    plain = re.sub(r"[*?]", "", pattern)
    inside = [name for name in known if plain and plain in name]
    return (inside or difflib.get_close_matches(plain, known, SHOWN_AT_MOST, 0.3) or known)[:SHOWN_AT_MOST]
