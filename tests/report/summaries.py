"""Plans as the page is given them, made by hand: a decoder of any size, one that cuts nothing, hostile names."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tpcompile.plan.estimate import Estimate, Memory
from tpcompile.plan.step_time import StepTime
from tpcompile.plan.summary import (
    CollectiveRow,
    CutDimension,
    PlanSummary,
    RankHolds,
    StepEntry,
    WeightRow,
    WholeDimension,
)
from tpcompile.plan.topology import find_topology

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`&amp;\u2028\u202e\x00\x1b[31m${title}"
"""What a name may hold that wants to be more than a name."""

HIDDEN, WIDE, ROWS = 512, 1376, 3200
MATRICES = {
    "q_proj": (HIDDEN, HIDDEN, "column"),
    "k_proj": (HIDDEN, HIDDEN, "column"),
    "v_proj": (HIDDEN, HIDDEN, "column"),
    "o_proj": (HIDDEN, HIDDEN, "row"),
    "gate_proj": (HIDDEN, WIDE, "column"),
    "up_proj": (HIDDEN, WIDE, "column"),
    "down_proj": (WIDE, HIDDEN, "row"),
}


class _Step:
    """Entries one behind another."""

    def __init__(self) -> None:
        self.entries: list[StepEntry] = []
        self.layer = -1

    def add(self, op: str, name: str, us: float, cut: str, reads: tuple[int, ...] = (), weight: str = "") -> int:
        kind = "communication" if op.startswith("all_") else "fused" if not us else "memory"
        start = self.entries[-1].start_us + self.entries[-1].us if self.entries else 0.0
        weights = (weight,) if weight else ()
        self.entries.append(StepEntry(name, op, kind, start, us, self.layer, cut, weights, reads))
        return len(self.entries) - 1


def _layer(step: _Step, prefix: str, before: int) -> int:
    def product(name: str, *reads: int) -> int:
        return step.add("MatMul", f"/{prefix}{name}/MatMul", 9.7, MATRICES[name][2], reads, f"{prefix}{name}.weight")

    norm = step.add("RMSNormalization", f"/{prefix}norm", 0.0, "whole", (before,))
    heads = []
    for name in ("q_proj", "k_proj", "v_proj"):
        split = step.add("Reshape", f"/{prefix}{name}/Reshape", 0.0, "cut", (product(name, norm),))
        heads.append(step.add("Transpose", f"/{prefix}{name}/Transpose", 0.0, "cut", (split,)))
    mixed = step.add("Attention", f"/{prefix}Attention", 14.2, "cut", tuple(heads))
    out = step.add("all_reduce", f"/{prefix}o_proj/MatMul_output_0", 12.4, "", (product("o_proj", mixed),))
    middle = step.add("Add", f"/{prefix}Add", 0.0, "whole", (before, out))
    norm = step.add("RMSNormalization", f"/{prefix}norm_1", 0.0, "whole", (middle,))
    gate = step.add("Sigmoid", f"/{prefix}Sigmoid", 0.0, "cut", (product("gate_proj", norm),))
    wide = step.add("Mul", f"/{prefix}Mul", 0.0, "cut", (gate, product("up_proj", norm)))
    down = step.add("all_reduce", f"/{prefix}down_proj/MatMul_output_0", 12.4, "", (product("down_proj", wide),))
    return step.add("Add", f"/{prefix}Add_1", 0.0, "whole", (middle, down))


def _weight(name: str, shape: tuple[int, ...], how: str, tp: int, reason: str = "") -> WeightRow:
    axis = {"column": 1, "row": 0, "vocab": 0}.get(how)
    local = tuple(size // tp if i == axis else size for i, size in enumerate(shape))
    nbytes = 2
    for size in shape:
        nbytes *= size
    each = nbytes if axis is None else nbytes // tp
    cut = () if axis is None else (f"{name}[{axis}]",)
    return WeightRow(name, "float16", shape, local, nbytes, (each,) * tp, how, cut, reason, "")


def decoder(layers: int = 4, tp: int = 4, prefix: str = "model.layers.", source: str = "decoder.onnx") -> PlanSummary:
    """A decoder with a cut vocabulary, two AllReduce a layer and an AllGather at its end."""
    step = _Step()
    table = step.add("Gather", "/embed/Gather", 1.2, "vocab", (), "embed.weight")
    hidden = step.add("all_reduce", "/embed/Gather_output_0", 12.4, "", (table,))
    weights = [_weight("embed.weight", (ROWS, HIDDEN), "vocab", tp)]
    for step.layer in range(layers):
        scope = f"{prefix}{step.layer}."
        hidden = _layer(step, scope, hidden)
        weights += [_weight(f"{scope}{name}.weight", (a, b), how, tp) for name, (a, b, how) in MATRICES.items()]
        weights.append(_weight(f"{scope}norm.weight", (HIDDEN,), "whole", tp, "the norm needs all of this axis"))
    step.layer = layers
    head = step.add("MatMul", "/lm_head/MatMul", 24.0, "column", (hidden,), "lm_head.weight")
    step.add("all_gather", "logits", 15.5, "", (head,))
    weights.append(_weight("lm_head.weight", (HIDDEN, ROWS), "column", tp))
    sent = [entry for entry in step.entries if entry.kind == "communication"]
    cheaper = "two of them in one AllReduce, if the model added both to the residual at once"
    collectives = [
        CollectiveRow(e.op, e.name, e.name.replace("_output_0", ""), 1.0, 2 * HIDDEN, e.us, "tree",
                      ("up_proj[1]",), e.layer, cheaper if e.op == "all_gather" else "")
        for e in sent
    ]  # fmt: skip
    stored = sum(row.nbytes for row in weights)
    held = [sum(row.rank_bytes[rank] for row in weights) for rank in range(tp)]
    caches, computed = 4_194_304, 655_360
    cut = tuple(
        CutDimension(f"{prefix}0.{name}.weight[{axis}]", how, f"/{prefix}0.{name}/MatMul", layers, size, (0, 1), tp,
                     (size // tp,) * tp, tuple(f"{prefix}{n}.{name}.weight[{axis}]" for n in range(layers)),
                     2 * HIDDEN * size * layers, 2 * HIDDEN * size * layers * (tp - 1) // tp, 31.5,
                     {"all_reduce": layers}, 12.4 * layers)
        for name, how, axis, size in (("up_proj", "column", 1, WIDE), ("o_proj", "row", 0, HIDDEN))
    )  # fmt: skip
    whole = (
        WholeDimension(f"{prefix}0.norm.weight[0]", 2 * layers + 1, HIDDEN, 2 * HIDDEN * layers,
                       "the norm needs all of this axis", ""),
        WholeDimension("rope.inv_freq[0]", 1, 64, 256, "64 parts are too few for 5 ranks", "use --tp 4"),
    )  # fmt: skip
    spent = StepTime(memory=sum(e.us for e in step.entries if e.kind == "memory"), compute=3.5, starts=20.5,
                     communication=sum(e.us for e in sent), sent_bytes=2.0 * HIDDEN * len(sent))  # fmt: skip
    alone = StepTime(memory=spent.memory * tp, compute=14.0, starts=20.5)
    found = Estimate(
        find_topology("h100x8"), tp, {"batch": 1, "seq": 1, "past": 2048}, Memory(max(held), caches, computed),
        Memory(stored, caches * tp, computed * 2), spent, alone, 1, layers, Counter(e.op for e in sent), True, "exact",
    )  # fmt: skip
    return PlanSummary(
        source, stored + 40_000, tp, "balanced", "", found, layers,
        tuple(RankHolds(rank, held[rank], caches, computed) for rank in range(tp)), cut, whole, tuple(weights),
        tuple(collectives), tuple(step.entries),
        ("--outputs shard would save the AllGather of the logits: 15 µs a step",), ("rope.inv_freq is stored twice",),
    )  # fmt: skip


def uncut() -> PlanSummary:
    """A small decoder that two ranks run whole."""
    plan = decoder(layers=2, tp=2)
    step = [replace(e, cut="whole", reads=()) for e in plan.step if e.kind != "communication"]
    weights = [
        replace(row, how="whole", local_shape=row.shape, rank_bytes=(row.nbytes,) * 2, dimensions=(), reason="small")
        for row in plan.weights
    ]
    found = plan.estimate
    found = replace(found, rank=found.whole, step=found.alone, collectives={}, cuts=False)
    return replace(
        plan, estimate=found, cut=(), weights=tuple(weights), collectives=(), step=tuple(step), advice=(),
        ranks=tuple(RankHolds(r, round(found.whole.weights), round(found.whole.caches), 0) for r in range(2)),
        notes=("cutting anything costs more than it saves: every rank runs the whole model",),
    )  # fmt: skip


def hostile() -> PlanSummary:
    """Every text of a plan that comes from a model, or might, is `HOSTILE`."""
    plan, bad = decoder(prefix=HOSTILE, source=HOSTILE), HOSTILE
    topology = replace(plan.estimate.topology, title=bad, name=bad, device=replace(find_topology("h100x8").device,
                       name=bad))  # fmt: skip
    return replace(
        plan, advice=(bad,), notes=(bad,), recipe=bad,
        estimate=replace(plan.estimate, topology=topology, sizes={bad: 3}),
        cut=tuple(replace(d, name=bad, node=bad, weights=(bad,), how="column") for d in plan.cut),
        whole=tuple(replace(d, name=bad, reason=bad, remedy=bad) for d in plan.whole),
        weights=tuple(replace(w, name=bad, dtype=bad, reason=bad, remedy=bad, dimensions=()) for w in plan.weights),
        collectives=tuple(replace(c, value=bad, node=bad, algorithm=bad, dimensions=(bad,), cheaper=bad)
                          for c in plan.collectives),
        step=tuple(replace(e, name=bad, weights=(bad,), op=e.op if e.kind == "communication" else bad)
                   for e in plan.step),
    )  # fmt: skip
