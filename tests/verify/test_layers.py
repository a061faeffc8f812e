"""`verify --layers K`: the graphs up to the end of a layer, found by what repeats among the weights."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import tpcompile
from tests import zoo
from tests.verify import decoders
from tests.verify.bundles import edit_rank, store, stored
from tpcompile.cli import main
from tpcompile.errors import Refused
from tpcompile.verify.command import verify_bundle
from tpcompile.verify.files import open_bundle, open_source
from tpcompile.verify.layers import _repetition, first_layers

GRAPH = "llama__dynamo__kv"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, onnx.ModelProto]:
    """A decoder of two layers on two ranks, and its source."""
    folder, model = tmp_path_factory.mktemp("layers"), zoo.model(GRAPH)
    tpcompile.compile(model, 2, folder / "out")
    return folder / "out", model


def test_the_first_layer_alone(work: tuple[Path, onnx.ModelProto]) -> None:
    report, full = verify_bundle(*work, layers=1), verify_bundle(*work)
    assert report.ok and full.ok
    names = list(report.trials[0].errors)
    assert {"present.0.key", "present.0.value"} <= set(names) and not {"present.1.key", "logits"} & set(names)
    followed = [int(found.checks[2].saw.split()[0]) for found in (report, full)]
    assert followed[0] < 0.7 * followed[1]
    assert report.trials[0].worst[1] < 1e-5


def test_as_many_layers_as_there_are_is_all(work: tuple[Path, onnx.ModelProto]) -> None:
    bundle, source = open_bundle(work[0]), open_source(work[1])
    assert first_layers(bundle, source, 2) == (bundle, source)


@pytest.mark.parametrize(("layer", "seen"), [(0, True), (1, False)])
def test_damage_is_seen_up_to_there(work: tuple[Path, onnx.ModelProto], tmp_path: Path, layer: int, seen: bool) -> None:
    tpcompile.compile(work[1], 2, tmp_path / "out")

    def change(model: onnx.ModelProto) -> None:
        name = f"m.model.layers.{layer}.post_attention_layernorm.weight"
        store(model, name, stored(model, name) * 1.5)

    for rank in range(2):
        edit_rank(tmp_path / "out", rank, change)
    report = verify_bundle(tmp_path / "out", work[1], layers=1)
    assert ({"TP510", "TP531"} <= {fault.code for fault in report.faults}) is seen
    assert report.ok is not seen


def test_repetitions() -> None:
    assert _repetition(list("eabcabcabch")) == (1, 3, 3)
    assert _repetition(list("eabab")) == (1, 2, 2)
    assert _repetition(list("aaaa")) == (0, 1, 4)
    assert _repetition(list("abcd")) == (0, 1, 1)


def test_nothing_that_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = decoders.compiled(tmp_path)
    assert main(["verify", str(bundle), "--layers", "1"]) == 2
    assert capsys.readouterr().err == (
        "TP507 --layers 1: asks for 1 layers, and no repeated layers are found. "
        "Verify all of it, with --memory where it is large\n"
    )


def test_no_layer(work: tuple[Path, onnx.ModelProto]) -> None:
    with pytest.raises(Refused, match="TP507 --layers 0: asks for 0 layers, and 2 layers are found"):
        verify_bundle(*work, layers=0)
