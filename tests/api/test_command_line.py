"""The command line: exit codes, refusals on stderr with their code, nothing left on disk, JSON for machines."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

import tpcompile
from tests.plan.models import TWO_LAYERS, model
from tpcompile import api, cli
from tpcompile.cli import main
from tpcompile.errors import Fault, NumbersDiffer, RankFailed


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    onnx.save(model(TWO_LAYERS), tmp_path / "in" / "m.onnx")
    return tmp_path / "in" / "m.onnx"


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The refusal of a command: all of stderr; stdout stays empty."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "TP100 tpcompile: the following arguments are required: MODEL, --tp. Run `tpcompile --help`"),
        (["m.onnx"], "TP100 tpcompile: the following arguments are required: --tp. Run `tpcompile --help`"),
        (["m.onnx", "--tp", "x"], "TP100 tpcompile: argument --tp: invalid int value: 'x'. Run `tpcompile --help`"),
        (["m.onnx", "--tp", "2", "--fast"], "TP100 tpcompile: unrecognized arguments: --fast. Run `tpcompile --help`"),
        (["plan", "--tp", "2"], "TP100 tpcompile plan: the following arguments are required: MODEL. "
                                "Run `tpcompile plan --help`"),
        (["plan", "m.onnx", "--tp", "2", "--force"], "TP100 tpcompile plan: unrecognized arguments: --force. "
                                                     "Run `tpcompile plan --help`"),
        (["m.onnx", "--tp", "2", "--pin", "w"], "TP100 --pin w: it is not of the form NAME=VALUE. "
                                                "Write --pin NAME=VALUE"),
        (["m.onnx", "--tp", "2", "--sizes", "seq"], "TP100 --sizes seq: it is not of the form NAME=NUMBER. "
                                                    "Write --sizes batch=1,seq=1,past=2048"),
        (["m.onnx", "--tp", "0"], "TP101 --tp 0: the degree of tensor parallelism is a number of ranks. Use 1 to 1024"),
        (["none.onnx", "--tp", "2"], "TP201 none.onnx: there is no such file. Give the path of an .onnx file"),
    ],
)  # fmt: skip
def test_what_cannot_be_served(
    argv: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(argv, capsys) == text + "\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wish",
    [
        ["--pin", "up0=vocab"],
        ["--sizes", "nothing=3"],
        ["--state", "ids=ids"],
        ["--role", "mask=nothing"],
        ["--plan", "nothing.toml"],
        ["-o", "no/where"],
    ],
)
def test_after_a_refusal_nothing_is_left(wish: list[str], source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = refused([str(source), "--tp", "2", *wish], capsys)
    assert text.startswith("TP")
    assert sorted(path.name for path in source.parent.parent.rglob("*")) == ["in", "m.onnx"]


def test_an_output_that_is_there(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = source.with_suffix(".tp2")
    assert main([str(source), "--tp", "2"]) == 0
    capsys.readouterr()
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    text = refused([str(source), "--tp", "2"], capsys)
    assert text == f"TP411 {out}: exists already. Choose another output, or replace it with --force\n"
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert main([str(source), "--tp", "2", "--force"]) == 0


def test_force_does_not_delete_the_source(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = source.with_suffix(".tp2")
    assert main([str(source), "--tp", "2"]) == 0
    inside = source.rename(out / "m.onnx")
    capsys.readouterr()
    text = refused([str(inside), "--tp", "2", "-o", str(out), "--force"], capsys)
    assert text == f"TP109 {out}: the source's own file m.onnx lies in it. Choose another output with -o\n"
    assert inside.is_file()


def test_data_of_the_source_in_the_output_is_kept_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    onnx.save(
        model(TWO_LAYERS), tmp_path / "m.onnx", save_as_external_data=True, location="out/w.bin", size_threshold=0
    )
    tpcompile.compile(model(TWO_LAYERS), 2, tmp_path / "b")
    (tmp_path / "out" / "bundle.json").write_bytes((tmp_path / "b" / "bundle.json").read_bytes())
    text = refused([str(tmp_path / "m.onnx"), "--tp", "2", "-o", str(tmp_path / "out"), "--force"], capsys)
    assert text == f"TP109 {tmp_path / 'out'}: the source's own file w.bin lies in it. Choose another output with -o\n"
    assert (tmp_path / "out" / "w.bin").is_file()


ENDINGS: list[tuple[BaseException, int, str]] = [
    (NumbersDiffer(Fault("TP531", "output y", "is wrong", "Do this")), 3, "TP531 output y: is wrong. Do this"),
    (RankFailed(Fault("TP612", "rank 1", "broke", "Do that")), 4, "TP612 rank 1: broke. Do that"),
    (KeyboardInterrupt(), 130, "interrupted: nothing was written"),
    (BrokenPipeError(), 0, ""),
    (
        ZeroDivisionError("ours"),
        1,
        f"TP999 this is a fault of tpcompile {tpcompile.__version__}. "
        "Please report the lines above, with the command and, if you can, the model",
    ),
]


@pytest.mark.parametrize(("error", "code", "text"), ENDINGS, ids=[type(error).__name__ for error, _, _ in ENDINGS])
def test_exit_codes(
    error: BaseException,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(api, "compile", fail)
    assert main(["m.onnx", "--tp", "2"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.rstrip("\n").splitlines()[-1:] == ([text] if text else [])
    if code == 1:
        assert "ZeroDivisionError: ours" in err


def test_a_bundle_with_other_numbers_is_no_output(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = SimpleNamespace(ok=False, faults=(Fault("TP531", "output y", "is wrong", "Do this"),))
    command = importlib.import_module("tpcompile.verify.command")
    monkeypatch.setattr(command, "verify_bundle", lambda *_: report)
    assert main([str(source), "--tp", "2", "--verify"]) == 3
    assert capsys.readouterr() == ("", "TP531 output y: is wrong. Do this\n")
    assert sorted(path.name for path in source.parent.iterdir()) == ["m.onnx", "m.tp2.failed"]


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tpcompile {tpcompile.__version__}\n"
    for command in ("", *cli.COMMANDS):
        assert main([*([command] if command else []), "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: tpcompile {command}".rstrip())


def test_json_of_a_compile(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(source), "--tp", "2", "--json", "--verify"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert found["folder"] == str(source.with_suffix(".tp2"))
    assert [entry["model"] for entry in found["ranks"]] == ["model_tp2_rank0.onnx", "model_tp2_rank1.onnx"]
    assert found["collectives"] == {"all_reduce": 3, "all_gather": 1}
    assert found["notes"] == []
    assert found["verify"]["ok"] is True


def test_json_of_a_plan(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(source), "--tp", "2", "--json", "--pin", "head=whole"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert (found["tp"], found["objective"], found["source"]["file"]) == (2, "balanced", "m.onnx")
    assert found["collectives"] == {"all_reduce": 3, "all_gather": 0}
    assert {group["name"]: group["degree"] for group in found["dimensions"]} == {
        "up0[1]": 2, "table[0]": 2,
    }  # fmt: skip
    assert [(group["name"], group["size"]) for group in found["whole_dimensions"]] == [
        ("table[1]", 16),
        ("head[1]", 50),
    ]
    weights = sum(4 * int(size) for size in (50 * 16, 2 * 16 * 36, 2 * 36, 2 * 36 * 16, 16 * 50))
    assert found["weights"]["source_bytes"] == weights
    saved = sum(group["saved_bytes"] for group in found["dimensions"])
    assert found["weights"]["rank_bytes"] == [weights - saved] * 2
    assert [whole["names"] for whole in found["whole_weights"]] == [["head"]]
    assert found["roles"] == {"tokens": "ids", "logits": "logits"}


def test_what_is_printed_for_people(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["plan", str(source), "--tp", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "m.onnx on 2 ranks"
    assert lines[2].split() == ["a", "rank", "one", "device"]
    assert lines[3].split() == ["weights", "8.0", "kB", "15.9", "kB", "50%"]
    assert any(line.startswith("3 AllReduce and 1 AllGather a step, ") for line in lines)
    assert "1 AllReduce a layer, 64 B a token" in lines
    assert any(line.startswith("8 × H100 SXM5 80 GB, NVLink 4, at ") for line in lines)
    cut = next(index for index, line in enumerate(lines) if line.startswith("cut "))
    assert lines[cut].split() == ["cut", "as", "parts", "saves", "a", "rank", "causes"]
    assert lines[cut - 2].startswith("one device: ")
    assert [line.split()[0] for line in lines[cut + 1 : cut + 4]] == ["up0[1]", "head[1]", "table[0]"]
    assert main(["plan", str(source), "--tp", "2", "--pin", "*=whole"]) == 0
    text = capsys.readouterr().out
    assert "weights                    15.9 kB     15.9 kB  100%" in text and "saves a rank" not in text
    assert "note: the pins leave nothing worth cutting: every rank runs the whole model" in text


def test_as_a_process_of_its_own(source: Path) -> None:
    command = [sys.executable, "-m", "tpcompile.cli", str(source), "--tp", "2", "--pin", "nothing=row"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "TP104 pin 'nothing=row': no weight or dimension has such a name (there are 8 weights, such as 'down1', "
        "'down0'). Correct the pattern, or leave the pin out\n"
    )


def test_a_folder_as_model_is_refused_before_an_output_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([".", "--tp", "2"]) == 2
    assert capsys.readouterr().err.startswith("TP204 ")
    assert list(tmp_path.iterdir()) == []


def test_packages_for_running_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "tpcompile.run.doctor", raising=False)
    for name in [name for name in sys.modules if name.startswith("tpcompile.run.mpi")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["doctor"]) == 2
    said = capsys.readouterr().out
    assert "MISSING  onnxruntime providers" in said and "pip install 'tpcompile[run]'" in said


def test_recipes_are_listed_and_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["megatron", "memory", "latency", "gather-weights"]
    assert lines[-1] == "tpcompile recipes NAME shows the file of one; --topologies lists the machines"
    assert main(["recipes", "--topologies"]) == 0
    assert "h100x8         8 × H100 SXM5 80 GB, NVLink 4" in capsys.readouterr().out
    assert main(["recipes", "llama"]) == 0
    file = Path(__file__).parents[2] / "recipes" / "llama.toml"
    assert capsys.readouterr().out == file.read_text(encoding="utf-8")
    assert main(["recipes", "h100x8"]) == 0
    assert capsys.readouterr().out.startswith("title = ")
    assert main(["recipes", "megatron", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["pins"][0]["role"], shown["file"][:7]) == ("megatron", "table", "title =")
    assert main(["recipes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "megatron"
    assert main(["recipes", "no such"]) == 2
    assert capsys.readouterr().err.startswith(
        "TP150 tpcompile recipes no such: there is no such recipe and no such file. "
    )
