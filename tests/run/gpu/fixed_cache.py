"""A model with a cache of fixed size, cut over the ranks: each token is mixed into it, and it names the next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from tests.run import handmade
from tests.run.handmade import Array
from tpcompile.bundle.manifest import IOEntry, Placement, StatePair

WORDS, WIDTH, SLOTS = 30, 8, 3
TEXT = """
    e = Gather (embedding, ids)  old = Mul (past, half)  present = Add (old, e)
    m = ReduceMean <keepdims = 0> (present, axis)  p = MatMul (m, head)
"""


def write(folder: Path, ranks: int) -> tuple[Path, onnx.ModelProto]:
    """The bundle, and the whole model."""
    rng = np.random.default_rng(4)
    part = WIDTH // ranks
    place = Placement(2, tuple(((rank * part, (rank + 1) * part),) for rank in range(ranks)))
    cache = IOEntry("float32", ("batch", SLOTS, WIDTH), place)
    inputs = {"ids": IOEntry("int64", ("batch", "seq")), "past": cache}
    outputs = {"logits": IOEntry("float32", ("batch", WORDS)), "present": cache}
    weights = {"embedding": handmade.normal(rng, WORDS, WIDTH) * 9, "head": handmade.normal(rng, WIDTH, WORDS)}
    constants = {"half": np.array(0.5, np.float32), "axis": np.array([1], np.int64)}
    nodes = handmade.nodes_of(TEXT)
    whole = handmade.model_of([*nodes, *handmade.renamed("p", "logits")], weights | constants, inputs, outputs)
    models = []
    for rank in range(ranks):
        local = {name: np.ascontiguousarray(np.split(array, ranks, 1 if name == "embedding" else 0)[rank])
                 for name, array in weights.items()}  # fmt: skip
        reduced = handmade.reducing(ranks)("p", "logits")
        models.append(handmade.model_of([*nodes, *reduced], local | constants, inputs, outputs, rank=rank))
    state, roles = [StatePair("past", "present", 1, "in_place")], {"tokens": "ids", "logits": "logits"}
    return handmade.write_bundle(folder, models, inputs, outputs, state, roles), whole


def greedy(whole: onnx.ModelProto, ids: Array, steps: int) -> Array:
    """What one device decodes."""
    past: Array = np.zeros((len(ids), SLOTS, WIDTH), np.float32)
    tokens = []
    for _ in range(steps):
        found = handmade.run_whole(whole, {"ids": ids, "past": past})
        ids, past = found["logits"].argmax(-1)[:, None], found["present"]
        tokens.append(ids)
    return np.concatenate(tokens, axis=1)
