"""What is told of a plan, in one place: the terminal, `--json` and report.html all show this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tpcompile.dims.cut import SubAxes
from tpcompile.plan.estimate import Estimate
from tpcompile.plan.words import SPOKEN


@dataclass(frozen=True)
class CutDimension:
    """A kind of dimension that is cut; `count` alike ones, one in each layer.

    Attributes:
        name: its place in its largest weight, as in plan.toml: "up.weight[1]".
        how: what it is to the readers of that weight: "column", "row", "vocab" or "expert".
        node: the operator that reads that weight, as the model names it.
        axes: the sub-axes of the grid of ranks it is cut over, `degree` parts in all, of sizes `blocks`.
        weights: the places in weights that are cut with it.
        stored_bytes, saved_bytes: of these weights, and what the cut takes off a rank, over all layers.
        saved_us: reading and computing that a rank is spared in a step, beside a plan without this cut.
        collectives: operation → how many of them a step has because of it; a sum that several cuts cause counts for
            each of them.
        collectives_us: how long these take.
    """

    name: str
    how: str
    node: str
    count: int
    size: int
    axes: SubAxes
    degree: int
    blocks: tuple[int, ...]
    weights: tuple[str, ...]
    stored_bytes: int
    saved_bytes: int
    saved_us: float
    collectives: Mapping[str, int]
    collectives_us: float


@dataclass(frozen=True)
class WholeDimension:
    """A kind of dimension that stays whole: why, and what would change that ("" where nothing would)."""

    name: str
    count: int
    size: int
    stored_bytes: int
    reason: str
    remedy: str


@dataclass(frozen=True)
class WeightRow:
    """A stored tensor: its shape in the model and on the rank with most of it, and its bytes on every rank.

    `how` is "column", "row", "vocab", "expert", "gathered" or "whole"; `dimensions` names the cut ones; `reason` says
    why a whole one is and `remedy` what would change that ("" where nothing would).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    nbytes: int
    rank_bytes: tuple[int, ...]
    how: str
    dimensions: tuple[str, ...]
    reason: str
    remedy: str


@dataclass(frozen=True)
class CollectiveRow:
    """A collective of a step.

    Attributes:
        op: "all_reduce", "all_gather", ….
        value: what is sent, as the model names it; `node` is the operator that makes it.
        runs: how often a step comes there: 1, or less within the branch of an If.
        nbytes: of the result, at the sizes of the plan.
        us: one of them; `algorithm` the fastest there: "ring", "tree", "hierarchical", ….
        dimensions: the cut ones that cause it.
        layer: which of the alike layers it is in, from 0; -1 before the first and `PlanSummary.layers` after the last.
        cheaper: where it would cost less and why it is not there, "" where it stands best.
    """

    op: str
    value: str
    node: str
    runs: float
    nbytes: int
    us: float
    algorithm: str
    dimensions: tuple[str, ...]
    layer: int
    cheaper: str


@dataclass(frozen=True)
class StepEntry:
    """A node or a collective on the time line of a step.

    Attributes:
        name: the node's name in the model, or the value that is sent.
        op: operator or collective.
        kind: "memory" or "compute" (by which a node is bound), "fused" (no time of its own) or "communication".
        start_us, us: when, from the beginning of the step, and how long.
        layer: as in `CollectiveRow`.
        cut: what it computes of the whole: "column", "row", "vocab", "expert" where it reads a cut weight, "cut" where
            it works on a part all the same, "whole" where every rank does all of it; "" for collectives.
        weights: names of the stored tensors it reads.
        reads: the entries that make what it reads, by their places in `PlanSummary.step`, in order, each once. A
            collective reads what is sent, and who needs its result reads the collective.
    """

    name: str
    op: str
    kind: str
    start_us: float
    us: float
    layer: int
    cut: str
    weights: tuple[str, ...]
    reads: tuple[int, ...] = ()


@dataclass(frozen=True)
class RankHolds:
    """What one rank holds, in bytes; of caches and activations, what the rank with most of each holds."""

    rank: int
    weights: int
    caches: int
    activations: int


@dataclass(frozen=True)
class WholeWeights:
    """Weights that every rank holds all of, for one reason, the largest first, and what would change that."""

    reason: str
    remedy: str
    names: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True)
class PlanSummary:
    """A plan, what it comes to, and why.

    `advice` are sentences on what would be cheaper on this machine; `notes` what was worth telling on the way.
    """

    source: str
    source_bytes: int
    tp: int
    objective: str
    recipe: str
    estimate: Estimate
    layers: int
    ranks: tuple[RankHolds, ...]
    cut: tuple[CutDimension, ...]
    whole: tuple[WholeDimension, ...]
    weights: tuple[WeightRow, ...]
    collectives: tuple[CollectiveRow, ...]
    step: tuple[StepEntry, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def cheaper_places(self) -> tuple[str, ...]:
        """Where collectives would send less, those that say the same said once."""
        found: dict[tuple[str, str], list[str]] = {}
        for row in self.collectives:
            if row.cheaper:
                found.setdefault((row.op, row.cheaper), []).append(row.value)
        return tuple(
            f"{SPOKEN[op]} of {values[0]}{f' (and {len(values) - 1} more)' if len(values) > 1 else ''}: {cheaper}"
            for (op, cheaper), values in found.items()
        )

    @property
    def a_layer(self) -> tuple[Mapping[str, int], int]:
        """What one of the alike layers sends, the middle one: how many of each operation, and their bytes."""
        rows = [row for row in self.collectives if row.layer == self.layers // 2] if self.layers > 1 else []
        return Counter(row.op for row in rows), sum(row.nbytes for row in rows)

    @property
    def whole_weights(self) -> tuple[WholeWeights, ...]:
        """The weights that stay whole, by reason, those with most bytes first."""
        found: dict[tuple[str, str], list[WeightRow]] = {}
        for row in self.weights:
            if row.reason:
                found.setdefault((row.reason, row.remedy), []).append(row)
        made = [
            WholeWeights(
                *why,
                tuple(row.name for row in sorted(rows, key=lambda row: -row.nbytes)),
                sum(row.nbytes for row in rows),
            )
            for why, rows in found.items()
        ]
        return tuple(sorted(made, key=lambda whole: -whole.nbytes))
