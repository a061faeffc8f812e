"""`tprun --dump` and `tpcompile diff`: parts are put together, the first value that departs is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.run import handmade
from tests.run.test_ranks import tprun
from tests.verify.bundles import edit_rank, made_by, store, stored
from tpcompile.cli import main
from tpcompile.run import arrays

X = np.random.default_rng(5).standard_normal((3, 12)).astype(np.float32)


def dumped(folder: Path, bundle: Path, pattern: str = "*", ranks: int = 2) -> Path:
    arrays.write(folder.parent / "in.npz", {"x": X})
    words = ["--inputs", folder.parent / "in.npz", "--dump", pattern, "--dump-to", folder]
    assert tprun(bundle, *words, ranks=ranks) == 0
    return folder


def placements(model: onnx.ModelProto) -> None:
    """What a compiler says of the values within the hand-made MLP."""
    halves = {"axis": 1, "ranges": [[[0, 12]], [[12, 24]]]}
    told = {name: halves for b in range(2) for name in (f"u{b}", f"a{b}")}
    told |= {f"p{b}": {"partial": [[0, 1]]} for b in range(2)} | {"l": {"axis": 1, "ranges": [[[0, 10]], [[10, 20]]]}}
    model.graph.metadata_props.add(key="tpcompile.placements", value=json.dumps(told))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The MLP for one rank and for two, and what both compute."""
    folder = tmp_path_factory.mktemp("work")
    handmade.mlp(folder / "one", 1)
    handmade.mlp(folder / "two", 2)
    for rank in range(2):
        edit_rank(folder / "two", rank, placements)
    dumped(folder / "A", folder / "one", ranks=1)
    dumped(folder / "B", folder / "two")
    return folder


def test_every_value_is_there_and_agrees(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((work / "B" / "dump.json").read_text())
    assert content["ranks"] == 2
    assert list(content["values"])[:5] == ["x", "u0", "a0", "p0", "r0"]
    assert content["values"]["u0"] == {"node": "MatMul", "placement": {"axis": 1, "ranges": [[[0, 12]], [[12, 24]]]}}
    assert [arrays.read(work / "B" / f"rank{rank}.npz", {})["u0"].shape for rank in range(2)] == [(3, 12), (3, 12)]
    assert main(["diff", str(work / "A"), str(work / "B")]) == 0
    out = capsys.readouterr().out
    assert out == "not compared: 1 (in one run alone, or each rank's own)\n16 values agree\n"


def test_a_collective_does_not_work_in_memory_that_is_shown(work: Path) -> None:
    """p0 is the partial sum, as it was before its all_reduce."""
    parts = [arrays.read(work / "B" / f"rank{rank}.npz", {}) for rank in range(2)]
    np.testing.assert_allclose(parts[0]["p0"] + parts[1]["p0"], parts[0]["r0"], rtol=1e-5, atol=1e-6)
    assert not np.array_equal(parts[0]["p0"], parts[0]["r0"])


def test_only_values_of_that_name(work: Path, tmp_path: Path) -> None:
    folder = dumped(tmp_path / "some", work / "two", "[ua]1")
    assert list(json.loads((folder / "dump.json").read_text())["values"]) == ["u1", "a1"]
    assert sorted(arrays.read(folder / "rank1.npz", {})) == ["a1", "u1"]


def test_a_name_that_no_value_has(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert tprun(work / "two", "--inputs", work / "in.npz", "--dump", "no*such", ranks=2) == 2
    assert (
        "[rank 0] TP615 --dump no*such: no value of the rank models has such a name. Quote the pattern; '*' dumps "
        "every value\n"
    ) in capfd.readouterr().err
    assert tprun(work / "two", "--inputs", work / "in.npz", "--dump", "*", "--steps", 2, ranks=2) == 2
    assert (
        "TP615 --dump: is for one pass, and --steps asks for several. Leave one of them out" in capfd.readouterr().err
    )


def scale_down(model: onnx.ModelProto) -> None:
    store(model, "down0", stored(model, "down0") * np.float32(1.01))


def no_tanh(model: onnx.ModelProto) -> None:
    made_by(model, "a1").op_type = "Identity"


@pytest.mark.parametrize(
    ("change", "ranks", "name", "others"),
    [(scale_down, (1,), "p0 (made by MatMul)", "12 others"), (no_tanh, (0, 1), "a1 (made by Identity)", "7 others")],
)
def test_the_first_value_that_departs(
    work: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[onnx.ModelProto], None],
    ranks: tuple[int, ...],
    name: str,
    others: str,
) -> None:
    handmade.mlp(tmp_path / "wrong", 2)
    for rank in range(2):
        edit_rank(tmp_path / "wrong", rank, placements)
    for rank in ranks:
        edit_rank(tmp_path / "wrong", rank, change)
    dumped(tmp_path / "C", tmp_path / "wrong")
    assert main(["diff", str(tmp_path / "C"), str(work / "A")]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"TP533 {name}: is the first value that departs: it is ")
    assert f"; {others} of 16 depart. What is wrong lies in that node, or between it and the values before it" in said
    assert main(["diff", str(tmp_path / "C"), str(work / "A"), "--json"]) == 3
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["departures"][0]["name"] == name.split()[0] and found["compared"] == 16


def test_whole_values_in_a_file(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An .npz of a run elsewhere: whole values by name."""
    values = dict(arrays.read(work / "A" / "rank0.npz", {}))
    arrays.write(tmp_path / "good.npz", {name: values[name] for name in ("u0", "y")})
    assert main(["diff", str(tmp_path / "good.npz"), str(work / "B")]) == 0
    values["u0"][1, 20] += 0.5
    arrays.write(tmp_path / "bad.npz", {name: values[name] for name in ("y", "u0")})
    capsys.readouterr()
    assert main(["diff", str(tmp_path / "bad.npz"), str(work / "B")]) == 3
    said = capsys.readouterr().err
    assert (
        said.startswith("TP533 u0 (made by MatMul): is the first value that departs: it is ") and "at [1, 20]" in said
    )
    values["u0"] = values["u0"][:2]
    arrays.write(tmp_path / "short.npz", {"u0": values["u0"]})
    assert main(["diff", str(tmp_path / "short.npz"), str(work / "B")]) == 3
    assert "it is float32[2, 24] in A, float32[3, 24] in B, relative error inf" in capsys.readouterr().err


def test_what_cannot_be_compared(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays.write(tmp_path / "other.npz", {"nothing": X})
    assert main(["diff", str(tmp_path / "other.npz"), str(work / "B")]) == 2
    assert capsys.readouterr().err == (
        f"TP506 {tmp_path / 'other.npz'} and {work / 'B'}: have no value in common that can be compared. "
        "Dump values of the same names: `tprun --dump '*'`\n"
    )
    assert main(["diff", str(tmp_path), str(work / "B")]) == 2
    assert capsys.readouterr().err == (
        f"TP506 {tmp_path}: holds no readable dump.json (FileNotFoundError). "
        "Give a folder that `tprun --dump` wrote, or an .npz file\n"
    )
    assert main(["diff", str(tmp_path / "none.npz"), str(work / "B")]) == 2
    assert capsys.readouterr().err.startswith("TP609 ")


def test_parts_that_do_not_fit(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((work / "B" / "dump.json").read_text())
    content["values"]["u0"]["placement"]["ranges"] = [[[0, 12]], [[12, 20]]]
    for rank in range(2):
        (tmp_path / f"rank{rank}.npz").write_bytes((work / "B" / f"rank{rank}.npz").read_bytes())
    (tmp_path / "dump.json").write_text(json.dumps(content))
    assert main(["diff", str(tmp_path), str(work / "A")]) == 2
    assert capsys.readouterr().err == (
        f"TP506 {tmp_path} u0: has shape [3, 12] on rank 1, its ranges on axis 1 name 8 indices. "
        "Write the dump again, of all ranks in one run\n"
    )


def test_values_of_the_branch_that_was_taken(tmp_path: Path) -> None:
    bundle, _ = handmade.branching(tmp_path / "b", 2)
    arrays.write(tmp_path / "in.npz", {"x": np.ones((3, 10), np.float32), "asked": np.array([True])})
    assert tprun(bundle, "--inputs", tmp_path / "in.npz", "--dump", "*", ranks=2) == 0
    content = json.loads((tmp_path / "b.dump" / "dump.json").read_text())
    assert {"r", "then_y", "chosen"} <= set(content["values"]) and "else_y" not in content["values"]
