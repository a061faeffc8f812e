"""What a plan costs, in bytes read: stored bytes per rank, and collectives at the price of reading weights.

`balanced` prices a collective relative to the model's own layers, so that a toy and a real model of one architecture
get the same plan. `memory` cuts all that can be cut and counts collectives only to break ties. `latency` prices both
by what they take on a machine (`machine_prices`), and may leave a small model whole.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

ALLREDUCE_SHARE = 0.56
"""An AllReduce costs what cutting saves on this share of a mean weight of the products: a tenth of a layer."""
READS_PER_BYTE = 1.0
"""Bytes read in the time one byte is sent. On a GPU it is about 11 (3.35 TB/s of HBM3, 300 GB/s of NVLink), but what
more tokens add to a collective they add to the products too, which are not priced here: so bytes only break ties."""
A_CUT_SHARE = 0.01
"""What a cut must save at least, as a share of a mean weight."""
TIE = 1e-6
OBJECTIVES = ("balanced", "memory", "latency")


@dataclass(frozen=True)
class Prices:
    """Prices in bytes read. Starting an AllGather costs as much as starting an AllReduce, its bytes half."""

    latency: float
    per_byte: float
    collectives: float = 1.0
    a_cut: float = 0.0
    """What cutting one kind of dimension costs beyond its collectives: a table of two rows is not worth its masks."""
    caches: bool = False
    """Whether caches count with all their bytes: in `balanced` each counts as a small part of a mean weight,
    however long they get, so that they are cut where that is to be had, and do not drive the plan."""
    relative: bool = True
    """Whether collectives are priced by the model's own layers: by how large they are beside its usual ones, and by
    what the best cut saves. Else by themselves alone."""
    reads: Counter[frozenset[int]] | None = field(default=None, repr=False)
    """What reading and multiplying with weights costs, by the groups that cut them; their bytes where it is None."""

    @classmethod
    def of(cls, objective: str, mean_product_bytes: float, tp: int) -> Prices:
        """Prices under an objective ("balanced" or "memory")."""
        balanced = objective == "balanced"
        return cls(
            latency=ALLREDUCE_SHARE * mean_product_bytes * (1 - 1 / tp),
            per_byte=READS_PER_BYTE,
            collectives=1.0 if balanced else 1e-4,
            a_cut=A_CUT_SHARE * mean_product_bytes if balanced else 0.0,
            caches=not balanced,
        )

    def all_reduce(self, count: float, nbytes: float, tp: int) -> float:
        """`count` typical AllReduces, of `nbytes` in all: a ring moves 2(N−1)/N of the bytes over each link."""
        return self.collectives * (count * self.latency + self.per_byte * 2 * (tp - 1) / tp * nbytes)

    def all_gather(self, count: float, nbytes: float, tp: int) -> float:
        """`count` AllGathers that make `nbytes` in all: (N−1)/N of the bytes arrive over each link."""
        return self.collectives * (count * self.latency + self.per_byte * (tp - 1) / tp * nbytes)
