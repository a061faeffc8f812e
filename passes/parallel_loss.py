"""Cross entropy over a vocabulary of which each rank has a part: what ranks send is a few numbers for each row.

log Σ exp(x) is that of all parts after the largest logit is agreed on; the target's logit comes from the rank that has
it (Shoeybi et al., "Megatron-LM", 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence

from tpcompile.dims.cut import Cut, SubAxes
from tpcompile.dims.dim import Dim
from tpcompile.graph.local import PerRank
from tpcompile.graph.program import Node, Value
from tpcompile.passes.emit import Emitter


def cross_entropy_of_parts(
    emitter: Emitter,
    node: Node,
    inputs: Sequence[str],
    output: str,
    classes: Dim,
    held: Cut,
    rows: str,
    because: str,
) -> None:
    """The loss of `inputs` (a rank's logits, and targets) as `output`, the same on every rank."""
    value: Value | None = node.outputs[0]
    assert value is not None
    ranks = range(emitter.mesh.tp)
    over: SubAxes = tuple(sorted(held.touched(classes)))
    starts = tuple(int(held.index(classes, rank)[0]) for rank in ranks)
    attributes = {name: node.attribute(name) for name in ("reduction", "ignore_index", "label_smoothing")}
    emitter.collective(
        "cross_entropy", inputs[0], output, over, value=value, shapes=[[] for _ in ranks],
        nbytes=f"{rows}*12", because=because, more=inputs[1:2],
        start=PerRank(starts), classes=classes.size, **attributes,
    )  # fmt: skip
