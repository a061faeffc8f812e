"""`tpcompile inspect`: what it says of a bundle, to people and to machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.plan.models import TWO_LAYERS, model
from tests.run.handmade import decoder
from tests.verify.bundles import edit_rank, make_bundle
from tpcompile import api
from tpcompile.cli import main
from tpcompile.verify.files import open_bundle
from tpcompile.verify.inspect import stored_weights


def shown(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["inspect", *map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    return api.compile(tmp_path / "m.onnx", 2, tmp_path / "out").folder


@pytest.mark.usefixtures("wide")
def test_for_people(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.rstrip() for line in shown(capsys, compiled).splitlines()]
    assert lines[0].startswith(f"{compiled}  m.onnx (") and "on 2 ranks, tp 2 × pp 1" in lines[0]
    weights = stored_weights(open_bundle(compiled))
    cut = next(weight for weight in weights if weight.ranges[0] is not None)
    row = next(line for line in lines if line.startswith(f"{cut.name} "))
    half = cut.shape[0] // 2
    assert row.split()[1:3] == ["float32", "×".join(map(str, cut.shape))]
    assert row.endswith(f"axis 0: 0:{half} | {half}:{cut.shape[0]}")
    at = next(index for index, line in enumerate(lines) if line.startswith("#"))
    assert lines[at + 1].split()[:2] == ["0", "all_reduce"]


@pytest.mark.usefixtures("wide")
def test_caches_and_roles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, decoder(tmp_path / "b", 2)[0])
    for row in (
        "ids      int64    [batch, seq]             whole              tokens",
        "past_k   float32  [batch, 4, past, 6]  axis 1: 0:2 | 2:4  cache, next from present_k",
        "present_k  float32  [batch, 4, total, 6]  axis 1: 0:2 | 2:4  cache, longer along axis 2",
    ):
        assert row.split() in [line.split() for line in text.splitlines()]


def test_for_machines(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(shown(capsys, compiled, "--json"))
    assert found["mesh"] == {"tp": 2, "pp": 1} and found["folder"] == str(compiled)
    assert [rank["bytes"] for rank in found["ranks"]] == [sum(d["bytes"] for d in r["data"]) for r in found["ranks"]]
    by_name = {weight["name"]: weight for weight in found["weights"]}
    source = {tensor.name: list(tensor.dims) for tensor in model(TWO_LAYERS).graph.initializer}
    assert {name: weight["shape"] for name, weight in by_name.items() if name in source} == source
    assert {weight["copies"] for weight in by_name.values()} == {1, 2}


def test_copies_are_counted_and_named(tmp_path: Path) -> None:
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    folder = api.compile(tmp_path / "m.onnx", 4, tmp_path / "out").folder

    def name_copies(rank: int) -> None:
        def change(proto: onnx.ModelProto) -> None:
            tensor = next(
                t for t in proto.graph.initializer if any(e.key == "tpcompile.ranges" for e in t.metadata_props)
            )
            entry = next(e for e in tensor.metadata_props if e.key == "tpcompile.ranges")
            axes = json.loads(entry.value)
            at = next(axis for axis, parts in enumerate(axes) if parts is not None)
            axes[at] = [[0, 2]] if rank < 2 else [[2, 4]]
            entry.value = json.dumps(axes)

        edit_rank(folder, rank, change)

    for rank in range(4):
        name_copies(rank)
    texts = {weight.lies(): weight.copies for weight in stored_weights(open_bundle(folder))}
    found = next(text for text in texts if "ranks 0, 1" in text)
    assert found[len("axis 0: ") :] == "0:2 (ranks 0, 1) | 2:4 (ranks 2, 3)" and texts[found] == 2


def test_one_rank_alone(tmp_path: Path) -> None:
    """A bias that rank 0 adds, and a tensor that rank 1 lacks."""
    folder = make_bundle(tmp_path, 2)

    def change(proto: onnx.ModelProto) -> None:
        tensor = next(t for t in proto.graph.initializer if t.name == "down_bias")
        tensor.metadata_props.add(key="tpcompile.zeroed", value="1")
        next(t for t in proto.graph.initializer if t.name == "up_bias").name = "elsewhere"

    edit_rank(folder, 1, change)
    lies = {weight.name: weight.lies() for weight in stored_weights(open_bundle(folder))}
    assert lies["down_bias"] == "on rank 0, zeros elsewhere"
    assert (lies["up_bias"], lies["elsewhere"]) == ("not on rank 1", "not on rank 0")


@pytest.mark.usefixtures("wide")
def test_long_tables_end(compiled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpcompile.verify.inspect.SHOWN", 2)
    short, full = shown(capsys, compiled), shown(capsys, compiled, "--all")
    assert "more weights (--weights GLOB or --all)" in short and "more collectives (--all)" in short
    assert "more weights" not in full and len(full) > len(short)


def test_weights_by_name(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = stored_weights(open_bundle(compiled))[0].name
    found = json.loads(shown(capsys, compiled, "--weights", name, "--json"))
    assert [weight["name"] for weight in found["weights"]] == [name]
    assert main(["inspect", str(compiled), "--weights", "no*such"]) == 2
    assert capsys.readouterr().err == (
        "TP505 --weights no*such: no weight of the bundle has such a name. "
        "`tpcompile inspect BUNDLE --all` lists them\n"
    )


def test_damaged_bundles_are_refused(compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("TP451 ")

    def change(proto: onnx.ModelProto) -> None:
        for tensor in proto.graph.initializer:
            for entry in tensor.metadata_props:
                if entry.key == "tpcompile.ranges":
                    entry.value = "[[1, 2"

    edit_rank(compiled, 1, change)
    assert main(["inspect", str(compiled)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("TP501 ") and "the part that a rank holds is described in what cannot be read" in error
    (compiled / "model_tp2_rank1.onnx").write_bytes(b"")
    assert main(["inspect", str(compiled)]) == 2
    assert "its sha256 differs" in capsys.readouterr().err
