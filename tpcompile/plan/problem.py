"""The planner's question: which classes there are, what cutting each saves, and which collectives it causes.

All costs are in *bytes read*: the time to read a byte of weights is the unit, and everything else is priced in it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tpcompile.dims.analysis import Analysis, product_related
from tpcompile.dims.cut import Mesh
from tpcompile.dims.dim import Dim, leaves, root
from tpcompile.dims.flow import reduced_leaves
from tpcompile.graph.program import Sizes, Value
from tpcompile.plan.collectives import Site, add_gathers, add_reductions
from tpcompile.plan.uses import (
    item_bytes,
    largest_stored,
    segments,
    stored_bytes,
    terms,
    uncut_leaves,
    value_bytes,
    weight_uses,
)

CACHE_SHARE = 0.1
"""What a cache counts as, of a mean weight, at most: enough to cut it rather than not where weights come out alike."""


@dataclass(eq=False)
class DimClass:
    """A leaf that may be cut, and where it stands in weights: (value, axis, position among the axis' leaves)."""

    leaf: Dim
    places: list[tuple[Value, int, int]]
    group: int = -1
    namesake: int = 0
    """Its number among the kinds of dimension with one place, from 1: a small weight has other dims at each use. 0
    where it is the only one."""

    @property
    def size(self) -> int:
        return self.leaf.size

    @property
    def most_parts(self) -> int:
        """Into how many parts it can be cut: fewer than its size where blocks are counted over it."""
        return self.leaf.most_parts

    @property
    def largest(self) -> tuple[Value, int, int]:
        """The place in the largest weight."""
        return max(self.places, key=lambda place: (stored_bytes(place[0]), place[0].name))

    @property
    def name(self) -> str:
        """The place in the largest weight: "layers.0.mlp.up.weight[1]", with ".k" where the axis has several leaves.

        Where several kinds of dimension have that place, "#1", "#2" and so on follows.
        """
        return place_name(*self.largest) + (f"#{self.namesake}" if self.namesake else "")


def place_name(value: Value, axis: int, position: int) -> str:
    """How plans call a leaf by its place in a weight."""
    return f"{value.name}[{axis}]" + (f".{position}" if position else "")


@dataclass(frozen=True)
class Part:
    """A rectangular part of a weight or a cache, and the groups that cut it.

    `heads`: of a cache, those of them by which `balanced` prices it (see `Problem.short_caches`); None for a weight.
    """

    value: Value
    nbytes: int
    groups: frozenset[int]
    heads: frozenset[int] | None = None


@dataclass
class Problem:
    """What the solver sees. Groups are classes of repeated layers, which share a decision."""

    mesh: Mesh
    classes: list[DimClass]
    groups: list[list[DimClass]]
    weights: Counter[frozenset[int]] = field(default_factory=Counter)
    """Bytes by the groups that cut them."""
    caches: Counter[frozenset[int]] = field(default_factory=Counter)
    short_caches: Counter[frozenset[int]] = field(default_factory=Counter)
    """The same, where each counts as `CACHE_SHARE` of a mean weight at most, and only along the first axis of fixed
    size after the batch: the heads."""
    parts: list[Part] = field(default_factory=list)
    """The weights and caches that these bytes are of; a small weight stands here once for each use."""
    reductions: dict[frozenset[int], float] = field(default_factory=lambda: defaultdict(float))
    """How many AllReduces a run has if any of the groups is cut; one in a branch of an If counts half."""
    reduced_bytes: Counter[frozenset[int]] = field(default_factory=Counter)
    """Bytes of what is sent, half precision as float32 where that is what ranks sum it in."""
    reduction_weights: dict[frozenset[int], float] = field(default_factory=lambda: defaultdict(float))
    """The reductions counted by how large their values are, in typical sums of products with weights, from 1 to
    `LARGEST_WEIGHT` each: the many small sums of norms say nothing of what is usual."""
    gathers: dict[frozenset[int], float] = field(default_factory=lambda: defaultdict(float))
    gathered_bytes: Counter[frozenset[int]] = field(default_factory=Counter)
    door_gathers: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How many AllGathers a run has if both groups are cut: they stand on two axes of a cache, which lies along one."""
    door_bytes: Counter[tuple[int, int]] = field(default_factory=Counter)
    sites: list[Site] = field(default_factory=list)
    """All of these collectives by the values they send."""
    byte_share: float = 1.0
    """What a byte of a collective counts as, in bytes sent (see `TYPICAL_BYTES_SHARE`)."""
    exclusive: set[tuple[int, int]] = field(default_factory=set)
    together: set[tuple[frozenset[int], frozenset[int]]] = field(default_factory=set)
    """Parts of one summed dim: over each sub-axis both are cut or neither."""
    forbidden: dict[int, str] = field(default_factory=dict)
    lookups: set[int] = field(default_factory=set)
    mean_product_bytes: float = 0.0
    """Geometric mean of the bytes of the weights that products read: the measure of a collective's price."""
    group_of: dict[Dim, int] = field(default_factory=dict)

    def stored_bytes(self, group: int) -> int:
        """Bytes of the weights that cutting a group cuts."""
        return sum(nbytes for key, nbytes in self.weights.items() if group in key)

    def groups_excluded_by(self, group: int) -> list[int]:
        """The groups that cannot be cut over the sub-axes over which `group` is."""
        return sorted({b if a == group else a for a, b in self.exclusive if group in (a, b)} - {group})


def build_problem(
    analysis: Analysis,
    mesh: Mesh,
    cut_doors: frozenset[Value],
    nominal: Callable[[Sizes], int],
    prompt: Callable[[Sizes], int],
    *,
    wide: bool,
) -> Problem:
    """Collect classes, savings and collectives.

    Args:
        analysis: the relations of the graph.
        mesh: the ranks.
        cut_doors: graph inputs and outputs that may stay cut (caches).
        nominal: the value of a size at the sizes the plan is made for.
        prompt: the same where many tokens are computed at once: what grows with their square shows there.
        wide: whether ranks sum half precision in float32.
    """
    uses = list(weight_uses(analysis))
    places: dict[Dim, list[tuple[Value, int, int]]] = defaultdict(list)
    for value, axes, nodes in uses:
        if value.known is not None and value.dtype in ("bool", "int32", "int64"):
            continue  # constant indices, sizes and masks: cutting them saves nothing
        stuck = uncut_leaves(analysis, value, nodes)
        for axis, dim in enumerate(axes):
            for position, leaf in enumerate(leaves(dim)):
                if leaf.static and leaf.most_parts > 1 and leaf not in stuck:
                    places[leaf].append((value, axis, position))
    classes = [DimClass(leaf, found) for leaf, found in places.items()]
    problem = Problem(mesh, classes, [])
    _group(problem, analysis)
    group_of = problem.group_of

    def groups_of(found: Iterator[Dim] | Sequence[Dim] | frozenset[Dim] | set[Dim]) -> frozenset[int]:
        return frozenset(group_of[leaf] for leaf in found if leaf in group_of)

    for value, axes, nodes in uses:
        stuck = uncut_leaves(analysis, value, nodes)
        for segment, size in segments(axes):
            groups = groups_of([leaf for leaf in segment if leaf not in stuck])
            nbytes = round(size * item_bytes(value.dtype))
            problem.weights[groups] += nbytes
            problem.parts.append(Part(value, nbytes, groups))
    _price_measure(problem, analysis)
    for value in cut_doors:
        held = analysis.axes[value]
        if held is not None and value in analysis.program.inputs:
            counted = min(1.0, CACHE_SHARE * problem.mean_product_bytes / max(value_bytes(value, nominal), 1))
            heads = set(leaves(next((dim for dim in held[1:] if dim.static), held[-1]))) if held else set()
            for segment, size in segments(
                [Dim((nominal(dim.sizes),) * len(dim.sizes)) if not dim.static else dim for dim in held]
            ):
                part = Part(
                    value, round(size * item_bytes(value.dtype)), groups_of(segment),
                    groups_of(heads.intersection(segment)),
                )  # fmt: skip
                problem.parts.append(part)
                problem.caches[part.groups] += part.nbytes
                problem.short_caches[part.heads or frozenset()] += round(counted * size * item_bytes(value.dtype))
    add_reductions(problem, analysis, groups_of, nominal, prompt, wide)
    add_gathers(problem, analysis, cut_doors, groups_of, nominal)
    _constraints(problem, analysis, groups_of)
    return problem


def _group(problem: Problem, analysis: Analysis) -> None:
    """Classes that stand in the same places of the same operators, and in equal weights, share one decision."""
    signature: dict[Dim, Counter[object]] = {cls.leaf: Counter() for cls in problem.classes}
    for node, relation in analysis.relations.items():
        for side, operands in (("in", relation.inputs), ("out", relation.outputs)):
            for index, axes in enumerate(operands):
                for axis, dim in enumerate(axes or ()):
                    top = root(dim)
                    if top.kind == "leaf":
                        if top in signature:
                            signature[top][node.op, side, index, axis, 0] += 1
                        continue
                    for position, leaf in enumerate(leaves(top)):
                        if leaf in signature:
                            signature[leaf][node.op, side, index, axis, position] += 1
    table: dict[object, int] = {}
    for cls in problem.classes:
        stored = Counter(
            (value.weight.shape if value.weight else (), value.dtype, axis) for value, axis, _ in cls.places
        )
        key = (cls.size, cls.leaf.grain, frozenset(signature[cls.leaf].items()), frozenset(stored.items()))
        cls.group = table.setdefault(key, len(table))
        if cls.group == len(problem.groups):
            problem.groups.append([])
        problem.groups[cls.group].append(cls)
        problem.group_of[cls.leaf] = cls.group
    namesakes: dict[str, dict[int, list[DimClass]]] = defaultdict(lambda: defaultdict(list))
    for cls in problem.classes:
        namesakes[cls.name][cls.group].append(cls)
    for of_group in namesakes.values():
        for number, classes in enumerate(of_group.values(), 1):
            for cls in classes if len(of_group) > 1 else ():
                cls.namesake = number


def _price_measure(problem: Problem, analysis: Analysis) -> None:
    """The geometric mean of the bytes products read: one wide FFN must not make attention look too small to cut.

    What one value is multiplied with counts as one, however many weights an exporter made of it: q, k and v, gate and
    up.
    """
    found: dict[Value, float] = defaultdict(float)
    for node, relation in analysis.relations.items():
        factor = next((value for value in node.inputs if value is not None and value.weight is None), None)
        if relation.reduced and relation.lookup is None and factor is not None:
            found[factor] += largest_stored(node)
    least = max(found.values(), default=0.0) / 1000  # scalars are no layers
    sizes = [size for size in found.values() if size and size >= least]
    problem.mean_product_bytes = math.exp(sum(map(math.log, sizes)) / len(sizes)) if sizes else 0.0


def _constraints(problem: Problem, analysis: Analysis, groups_of: Callable[..., frozenset[int]]) -> None:
    group_of = problem.group_of
    related: dict[Value, list[tuple[Dim, Dim]]] = {}
    for node, relation in analysis.relations.items():
        blocked = analysis.blocked[node]
        for side, operands in ((node.inputs, relation.inputs), (node.outputs, relation.outputs)):
            for value, axes in zip(side, operands, strict=True):
                if value is None or axes is None or (value.known is not None and value.weight is None):
                    continue
                if value not in related:
                    related[value] = [(a, b) for a, b in product_related(axes) if a in group_of and b in group_of]
                pairs = (
                    related[value]
                    if axes is analysis.axes[value]
                    else [(a, b) for a, b in product_related(axes) if a in group_of and b in group_of]
                )
                for a, b in pairs:
                    if a not in blocked and b not in blocked:
                        _exclude(problem, group_of[a], group_of[b])
        summed = [leaf for leaf in reduced_leaves(analysis, node) if leaf in group_of]
        if relation.lookup is not None:
            problem.lookups.update(group_of[leaf] for leaf in summed)
        if summed:
            kept = {
                leaf
                for axes in relation.outputs
                for dim in axes or ()
                for leaf in leaves(dim)
                if leaf in group_of and leaf not in blocked
            }
            for a, b in itertools.product(summed, kept):
                _exclude(problem, group_of[a], group_of[b])
        for reduced in relation.reduced:
            parts = {groups_of([leaf for leaf in inside if leaf not in blocked]) for inside, _ in terms(reduced.dim)}
            first = min(parts, key=sorted)
            problem.together.update((first, part) for part in parts if part != first)


def _exclude(problem: Problem, a: int, b: int) -> None:
    problem.exclusive.add((min(a, b), max(a, b)))
