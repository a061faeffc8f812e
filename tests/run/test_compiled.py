"""What the compiler writes, run by real ranks: decoders of real exporters, token for token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tpcompile
from tests import zoo
from tests.run.handmade import Array
from tpcompile.run.session import InferenceSession

STEPS = 6


def on_one_device(model: Path, prompt: dict[str, Array], state: dict[str, str], roles: dict[str, str]) -> Array:
    """What onnxruntime decodes, everything passed by hand."""
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feeds, tokens = dict(prompt), []
    for _ in range(STEPS):
        found = dict(zip(names, session.run(None, feeds), strict=True))
        tokens.append(found[roles["logits"]][:, -1].argmax(-1)[:, None])
        feeds[roles["tokens"]] = tokens[-1]
        mask = feeds.get(roles.get("mask", ""))
        if mask is not None:
            feeds[roles["mask"]] = np.concatenate([mask, np.ones_like(mask[:, -1:])], axis=1)
        if "positions" in roles:
            feeds[roles["positions"]] = feeds[roles["positions"]][..., -1:] + 1
        feeds |= {name: found[output] for name, output in state.items()}
    return np.concatenate(tokens, axis=1)


CACHED = [name for name in zoo.names() if name.endswith("__kv")]
GATHERED = {"*": "gather"}
"""Everything stored cut and gathered before use."""


@pytest.mark.parametrize(
    ("name", "pins"), [*((name, {}) for name in CACHED), *((name, GATHERED) for name in CACHED[:2])]
)
def test_token_for_token(tmp_path: Path, name: str, pins: dict[str, str]) -> None:
    onnx.save(zoo.model(name), tmp_path / "model.onnx")
    bundle = tpcompile.compile(tmp_path / "model.onnx", 2, tmp_path / "b", pins=pins)
    assert bool(pins) == all(call.op == "all_gather" for call in bundle.manifest.collectives)
    with InferenceSession(tmp_path / "b") as session:
        manifest = session.manifest
        inputs = {key: array for key, array in zoo.feeds(name).items() if key in manifest.inputs}
        found = session.decode(inputs, STEPS)["tokens"]
    state = {pair.input: pair.output for pair in manifest.state}
    assert state
    assert np.array_equal(found, on_one_device(tmp_path / "model.onnx", inputs, state, dict(manifest.roles)))
