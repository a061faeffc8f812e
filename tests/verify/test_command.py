"""`tpcompile verify` as a person and as a machine see it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.verify.bundles import edit_rank, make_bundle, source_model, store, weights
from tpcompile.errors import Refused
from tpcompile.verify.command import add_verify_arguments, verify_bundle, verify_command


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_verify_arguments(parser)
    return verify_command(parser.parse_args(list(arguments)))


def double_bias(model: onnx.ModelProto) -> None:
    store(model, "down_bias", weights()["down_bias"])


def test_what_a_person_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(make_bundle(tmp_path, 2))) == 0
    out, err = capsys.readouterr()
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[:2] == ["Inputs", "  ids  int64[2, 6] 0 … 9"]
    assert "weights  ok  7 tensors, 0.0 MB compared bit by bit" in lines
    assert lines[-1] == "The bundle gives the source's numbers."
    assert err == ""


def test_what_a_machine_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = make_bundle(tmp_path, 2)
    for rank in range(2):
        edit_rank(bundle, rank, double_bias)
    assert run(str(bundle), "--json") == 3
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert [check["name"] for check in report["checks"] if not check["ok"]] == ["layout", "numbers"]
    assert report["trials"][0]["first_divergence"].startswith("down_sum (made by Add down_sum_node): relative error ")


def test_faults_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = make_bundle(tmp_path, 2)
    for rank in range(2):
        edit_rank(bundle, rank, double_bias)
    assert run(str(bundle)) == 3
    out, err = capsys.readouterr()
    assert out.rstrip().endswith("3 faults.")
    assert " ".join(err.split()).startswith(
        "TP525 Add down_part_node: adds 'down_bias', which every rank holds, to partial 'down_out': the sum over ranks "
        "counts it once per rank. This is a fault of tpcompile or of a changed file"
    )


def test_given_inputs_and_source(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, 2)
    (tmp_path / "model.onnx").unlink()
    np.savez(tmp_path / "x.npz", ids=np.array([[3, -1, 9]]))
    with pytest.raises(Refused) as error:
        verify_bundle(bundle)
    assert str(error.value) == (
        f"TP502 {bundle}: its source 'model.onnx' lies neither in the bundle nor beside it. "
        "Say where it is with --source MODEL"
    )
    report = verify_bundle(bundle, source_model(), tmp_path / "x.npz")
    assert [trial.name for trial in report.trials] == ["given"]


def test_inputs_that_the_source_cannot_run(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, 2)
    with pytest.raises(Refused) as error:
        verify_bundle(bundle, None, {"ids": np.array([[99]])})
    assert str(error.value).startswith(
        "TP503 model.onnx: the source cannot run on {'ids': 'int64[1, 1] 99 … 99'}: [ONNXRuntimeError]"
    )
    assert str(error.value).endswith(". Give inputs that it can run with --inputs x.npz")


def test_a_source_that_cannot_be_opened(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, 2)
    model = source_model()
    model.graph.node[3].op_type = "Unheard"
    with pytest.raises(Refused) as error:
        verify_bundle(bundle, model)
    assert str(error.value).startswith("TP504 the source model: onnxruntime cannot open it: [ONNXRuntimeError]")
    assert str(error.value).endswith("Verification runs the source; give one that onnxruntime can run on a CPU")
