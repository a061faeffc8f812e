"""A session outside mpirun: called as onnxruntime's, with ranks of its own in the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.run import handmade
from tpcompile.bundle.manifest import Manifest
from tpcompile.errors import RankFailed, Refused
from tpcompile.run import decode
from tpcompile.run.mpirun import environment, mpirun
from tpcompile.run.session import InferenceSession, NodeArg


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, onnx.ModelProto]:
    return handmade.decoder(tmp_path_factory.mktemp("s") / "b", 2)


@pytest.fixture(scope="module")
def session(decoder: tuple[Path, onnx.ModelProto]) -> Iterator[InferenceSession]:
    with InferenceSession(decoder[0]) as made:
        yield made


def feeds(past: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(past)
    cache = rng.standard_normal((2, 2, 4, past, 6)).astype(np.float32)
    return {
        "ids": np.array([[3, 7], [5, 2]]), "mask": np.ones((2, past + 2), np.int64),
        "positions": np.tile(np.arange(past, past + 2), (2, 1)), "past_k": cache[0], "past_v": cache[1],
    }  # fmt: skip


def test_it_describes_the_source_model(session: InferenceSession) -> None:
    assert session.get_inputs()[3] == NodeArg("past_k", "tensor(float)", ["batch", 4, "past", 6])
    assert [found.name for found in session.get_outputs()] == ["logits", "present_k", "present_v"]


@pytest.mark.parametrize("past", [0, 3])
def test_run_gives_whole_outputs(session: InferenceSession, decoder: tuple[Path, onnx.ModelProto], past: int) -> None:
    wanted = handmade.run_whole(decoder[1], feeds(past))
    for found, name in zip(session.run(None, feeds(past)), wanted, strict=True):
        np.testing.assert_allclose(found, wanted[name], rtol=1e-4, atol=1e-4)
    (k,) = session.run(["present_k"], feeds(past))
    np.testing.assert_allclose(k, wanted["present_k"], rtol=1e-4, atol=1e-4)


def test_decode(session: InferenceSession) -> None:
    found = session.decode({"ids": np.array([[3, 7, 1], [5, 2, 9]])}, 4)
    assert found["tokens"].shape == (2, 4)
    assert found["logits"].shape == (2, 1, 40)


def test_wrong_inputs_are_refused_and_the_session_lives(session: InferenceSession) -> None:
    wrong = feeds(3) | {"ids": np.array([1, 2, 3]), "mask": np.ones((2, 5), np.float32), "extra": np.ones(1)}
    wrong["past_k"] = wrong["past_k"][:, :3]
    del wrong["past_v"]
    with pytest.raises(Refused) as caught:
        session.run(None, wrong)
    assert str(caught.value).splitlines() == [
        "TP621 input extra: is no input of this model. It has ids, mask, positions, past_k, past_v",
        "TP621 input ids: has shape [3]. Give int64 ['batch', 'seq']",
        "TP621 input mask: is of type float32. Give int64 ['batch', 'total']",
        "TP621 input past_k: has 3 along axis 1. Give float32 ['batch', 4, 'past', 6]",
        "TP621 input past_v: is missing. Give float32 ['batch', 4, 'past', 6]",
    ]
    with pytest.raises(Refused) as caught:
        session.run(["logit"], feeds(3))
    assert str(caught.value) == "TP621 outputs: logit is no output of this model. It has logits, present_k, present_v"
    assert session.run(["logits"], feeds(0))[0].shape == (2, 2, 40)


def ranks_of(bundle: Path) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"tpcompile.run.serve" in words and str(bundle).encode() in words and b"python" in words[0]:
            found.append(int(place.parent.name))
    return found


def gone(bundle: Path) -> bool:
    until = time.monotonic() + 8
    while ranks_of(bundle) and time.monotonic() < until:
        time.sleep(0.05)
    return not ranks_of(bundle)


def test_a_killed_rank_ends_the_session(tmp_path: Path) -> None:
    bundle, _ = handmade.mlp(tmp_path / "b", 2)
    session = InferenceSession(bundle)
    x = {"x": np.ones((1, 12), np.float32)}
    session.run(None, x)
    os.kill(ranks_of(bundle)[0], signal.SIGKILL)
    with pytest.raises(
        RankFailed, match=r"^TP612 session: a rank failed: .*exited on.*signal 9.*\. Make a new session when"
    ):
        session.run(None, x)
        session.run(None, x)
    with pytest.raises(Refused) as caught:
        session.run(None, x)
    assert str(caught.value) == "TP613 session: its ranks have ended. Make a new InferenceSession"
    assert gone(bundle)


def test_closing_and_leaving_end_the_ranks(tmp_path: Path) -> None:
    bundle, _ = handmade.mlp(tmp_path / "b", 2)
    with InferenceSession(bundle):
        assert ranks_of(bundle)
    assert gone(bundle)
    code = f"from tpcompile.run.session import InferenceSession; s = InferenceSession({str(bundle)!r}); print('up')"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout == "up\n", done.stderr
    assert gone(bundle)


def test_a_killed_caller_ends_the_ranks(tmp_path: Path) -> None:
    bundle, _ = handmade.mlp(tmp_path / "b", 2)
    code = f"""
import os
from tpcompile.run.session import InferenceSession
s = InferenceSession({str(bundle)!r})
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), timeout=60, check=False)
    assert done.returncode == -9
    assert gone(bundle)


def test_what_ranks_refuse_while_loading_is_raised(tmp_path: Path) -> None:
    bundle, _ = handmade.mlp(tmp_path / "b", 2)
    (bundle / "model_tp2_rank1.onnx").write_bytes(b"junk")
    with pytest.raises(
        Refused, match=r"^TP608 rank 1: .*rank1\.onnx: is not the file that bundle\.json was written with"
    ):
        InferenceSession(bundle)


def test_a_bundle_for_one_needs_no_ranks(tmp_path: Path) -> None:
    bundle, whole = handmade.mlp(tmp_path / "b", 1)
    x = np.ones((2, 12), np.float32)
    (found,) = InferenceSession(bundle).run(None, {"x": x})
    np.testing.assert_allclose(found, handmade.run_whole(whole, {"x": x})["y"], rtol=1e-5)


def test_under_mpirun_every_rank_has_the_whole(tmp_path: Path) -> None:
    bundle, whole = handmade.mlp(tmp_path / "b", 2)
    x = np.ones((2, 12), np.float32)
    wanted = handmade.run_whole(whole, {"x": x})["y"]
    np.save(tmp_path / "wanted.npy", wanted)
    code = f"""
import numpy
from tpcompile.run.session import InferenceSession
found, = InferenceSession({str(bundle)!r}).run(None, {{"x": numpy.ones((2, 12), numpy.float32)}})
numpy.testing.assert_allclose(found, numpy.load({str(tmp_path / "wanted.npy")!r}), rtol=1e-5)
print("good", flush=True)
"""
    command = [mpirun(), "--bind-to", "none", "-n", "2", sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout.count("good") == 2, done.stderr


def test_decoding_refuses_what_it_cannot_do(
    session: InferenceSession, decoder: tuple[Path, onnx.ModelProto], tmp_path: Path
) -> None:
    with pytest.raises(Refused) as caught:
        session.decode({"ids": np.array([[3]])}, 0)
    assert str(caught.value) == "TP622 decoding: 0 steps were asked for. Ask for one or more"
    with pytest.raises(Refused) as caught:
        session.decode({}, 1)
    assert str(caught.value) == (
        "TP622 input ids: decoding needs the prompt's token ids. Give integers of shape [batch, sequence]"
    )
    bundle, _ = handmade.mlp(tmp_path / "b", 1)
    with pytest.raises(Refused) as caught:
        InferenceSession(bundle).decode({}, 1)
    assert str(caught.value) == (
        "TP622 decoding: the bundle names no tokens and no logits. Compile with `--role tokens=INPUT --role "
        "logits=OUTPUT`"
    )


def test_the_prompt_is_completed(decoder: tuple[Path, onnx.ModelProto]) -> None:
    manifest = Manifest.read(decoder[0])
    made = decode.prompt(manifest, {"ids": np.array([[3, 7, 1], [5, 2, 9]])})
    assert made["mask"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert made["positions"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert (made["past_k"].shape, made["past_k"].dtype) == ((2, 4, 0, 6), np.float32)
    later = decode.advance(manifest, made, np.array([[4], [8]]))
    assert later["ids"].tolist() == [[4], [8]]
    assert later["mask"].shape == (2, 4)
    assert later["positions"].tolist() == [[3], [3]]


def in_place(folder: Path) -> Manifest:
    """The handmade decoder's manifest as if its caches held 5 tokens and were written in place."""
    found = Manifest.read(handmade.decoder(folder / "b", 2)[0])
    caches = {name: replace(found.inputs[name], shape=("batch", 4, 5, 6)) for name in ("past_k", "past_v")}
    mask = replace(found.inputs["mask"], shape=("batch", 5))
    state = tuple(replace(pair, kind="in_place") for pair in found.state)
    return replace(found, inputs=dict(found.inputs) | caches | {"mask": mask}, state=state)


def test_caches_in_place_keep_their_size(tmp_path: Path) -> None:
    manifest = in_place(tmp_path)
    made = decode.prompt(manifest, {"ids": np.array([[3, 7, 1]])})
    assert made["past_k"].shape == (1, 4, 5, 6)
    assert made["mask"].tolist() == [[1, 1, 1, 0, 0]]
    for wanted in ([[1, 1, 1, 1, 0]], [[1, 1, 1, 1, 1]]):
        made = decode.advance(manifest, made, np.array([[4]]))
        assert made["mask"].tolist() == wanted
    with pytest.raises(Refused) as caught:
        decode.advance(manifest, made, np.array([[4]]))
    assert str(caught.value) == "TP623 decoding: the caches are full after 5 tokens. Decode fewer steps"


def test_inputs_that_nobody_drives_are_refused(decoder: tuple[Path, onnx.ModelProto]) -> None:
    manifest = Manifest.read(decoder[0])
    roles = {role: name for role, name in manifest.roles.items() if role != "positions"}
    with pytest.raises(Refused) as caught:
        decode.check_roles(replace(manifest, roles=roles), 2)
    assert str(caught.value) == (
        "TP623 input positions: decoding does not know how it changes from step to step. Call session.run in a loop of "
        "your own"
    )


def test_a_cache_of_unknown_size_is_asked_for(decoder: tuple[Path, onnx.ModelProto]) -> None:
    manifest = Manifest.read(decoder[0])
    inputs = dict(manifest.inputs) | {"past_k": replace(manifest.inputs["past_k"], shape=("batch", 4, "past", "size"))}
    with pytest.raises(Refused) as caught:
        decode.prompt(replace(manifest, inputs=inputs), {"ids": np.array([[3]])})
    made = decode.prompt(replace(manifest, inputs=inputs, sizes={"size": 5}), {"ids": np.array([[3]])})
    assert made["past_k"].shape == (1, 4, 0, 5)  # the bundle may know: exporters leave the size of a head open
    assert str(caught.value) == (
        "TP623 input past_k: ['batch', 4, 'past', 'size']: the size of size is not known. Give past_k with the inputs"
    )


def test_lists_are_inputs_as_arrays_are(tmp_path: Path) -> None:
    bundle, whole = handmade.mlp(tmp_path / "b", 2)
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 12)
    with InferenceSession(bundle) as session:
        with pytest.raises(Refused) as refused:
            session.run(None, {"x": x.tolist()})
        assert "TP621 input x" in str(refused.value) and "float64" in str(refused.value)
        found = session.run(["y"], {"x": x})[0]
        np.testing.assert_allclose(found, handmade.run_whole(whole, {"x": x})["y"], rtol=1e-5, atol=1e-5)
