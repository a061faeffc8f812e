"""Elements that several ranks hold among parts that each rank has for itself: key heads beside cut query heads.

An AllReduce of what such ranks send back would count those elements once per rank. So their gradient is divided among
the ranks that hold them before it goes on to what all ranks have whole, and is multiplied again where it ends in what
the same ranks hold alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim, root

Counts = npt.NDArray[np.float32]


def holders(held: Cut, dim: Dim, rank: int, over: frozenset[int]) -> Counts | None:
    """How many of the ranks that differ on sub-axes `over` hold each element of a rank's part; None: each but one."""
    over &= held.touched(dim)
    if not dim.static or held.covered(dim) >= over:
        return None
    primes = held.mesh.primes
    return np.array([math.prod(primes[a] for a in over - by) for by in _covering(held, dim, rank)], np.float32)


def _covering(held: Cut, dim: Dim, rank: int) -> Iterator[frozenset[int]]:
    """The sub-axes over which each element of a rank's part is cut, in order."""
    top = root(dim)
    if top.kind == "sum":
        for part in top.parts:
            yield from _covering(held, part, rank)
    elif top.kind == "product":
        yield from _of_product(held, top.parts, rank)
    else:
        yield from (held.covered(top) for _ in range(held.local_size(top, rank)))


def _of_product(held: Cut, parts: Sequence[Dim], rank: int) -> Iterator[frozenset[int]]:
    if not parts:
        yield frozenset()
        return
    inner = list(_of_product(held, parts[1:], rank))
    for outer in _covering(held, parts[0], rank):
        yield from (outer | each for each in inner)
