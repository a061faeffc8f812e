"""Sequences fed piece by piece give what one call with all tokens gives, however they are mixed with other calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.run import handmade
from tpcompile.errors import Refused
from tpcompile.run.session import InferenceSession

IDS = np.random.default_rng(8).integers(0, 40, (3, 2, 9))
"""Three sequences of two rows each."""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, onnx.ModelProto]:
    return handmade.decoder(tmp_path_factory.mktemp("s") / "b", 2)


@pytest.fixture(scope="module")
def session(decoder: tuple[Path, onnx.ModelProto]) -> Iterator[InferenceSession]:
    with InferenceSession(decoder[0]) as made:
        yield made


def whole(model: onnx.ModelProto, ids: np.ndarray) -> np.ndarray:
    """The logits of all tokens in one call on one device."""
    batch, count = ids.shape
    empty = np.zeros((batch, 4, 0, 6), np.float32)
    positions = np.tile(np.arange(count), (batch, 1))
    fed = {"ids": ids, "mask": np.ones_like(ids), "positions": positions, "past_k": empty, "past_v": empty}
    return handmade.run_whole(model, fed)["logits"]


def test_sequences_side_by_side(session: InferenceSession, decoder: tuple[Path, onnx.ModelProto]) -> None:
    """Pieces of different lengths, in turns, with plain runs and decoding in between."""
    ends = {0: [4, 5, 9], 1: [1, 3, 6, 9], 2: [9]}
    said: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}
    fed = dict.fromkeys(ends, 0)
    for turn in range(4):
        for key, stops in ends.items():
            if turn < len(stops):
                piece = IDS[key][:, fed[key] : stops[turn]]
                said[key].append(session.extend(key, {"ids": piece})["logits"])
                fed[key] = stops[turn]
        session.decode({"ids": IDS[0][:, :3]}, 2)
    for key in ends:
        wanted = whole(decoder[1], IDS[key])
        np.testing.assert_allclose(np.concatenate(said[key], axis=1), wanted, rtol=1e-4, atol=1e-4)
        session.forget(key)


def test_a_caller_s_own_mask_and_outputs(session: InferenceSession, decoder: tuple[Path, onnx.ModelProto]) -> None:
    """Padding on the left, as tokenizers make it: what is given is used, what is not goes on from there."""
    ids, mask = IDS[0][:, :5], np.ones((2, 5), np.int64)
    mask[1, :2] = 0
    first = session.extend(7, {"ids": ids[:, :4], "mask": mask[:, :4]}, ["logits", "present_k"])
    assert first["present_k"].shape == (2, 4, 4, 6)
    second = session.extend(7, {"ids": ids[:, 4:]})
    assert list(second) == ["logits"]
    empty = np.zeros((2, 4, 0, 6), np.float32)
    fed = {"ids": ids, "mask": mask, "positions": np.tile(np.arange(5), (2, 1)), "past_k": empty, "past_v": empty}
    wanted = handmade.run_whole(decoder[1], fed)["logits"]
    np.testing.assert_allclose(second["logits"], wanted[:, 4:], rtol=1e-4, atol=1e-4)
    session.forget(7)


def test_what_cannot_go_on(session: InferenceSession) -> None:
    session.extend(3, {"ids": IDS[0][:, :2]})
    cache = np.zeros((2, 4, 2, 6), np.float32)
    for feeds, text in (
        ({"ids": IDS[0][:1, 2:3]}, "TP622 input ids: going on needs the next token ids of the same batch. "
                                   "Give integers of shape [2, sequence]"),
        ({}, "TP622 input ids: going on needs the next token ids of the same batch. "
             "Give integers of shape [2, sequence]"),
        ({"ids": IDS[0][:, 2:3], "past_k": cache}, "TP621 input past_k: is no input of this model. "
                                                   "It has ids, mask, positions"),
    ):  # fmt: skip
        with pytest.raises(Refused) as caught:
            session.extend(3, feeds)
        assert str(caught.value) == text
    session.forget(3)
    with pytest.raises(Refused) as caught:
        session.forget(3)
    assert str(caught.value) == "TP625 sequence 3: there is no such sequence. Begin it with extend"
