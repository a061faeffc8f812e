"""`verify --memory`: part by part, with the same answer."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.run import handmade
from tests.verify import decoders
from tests.verify.bundles import edit_rank, store
from tpcompile.cli import main
from tpcompile.verify import simulate, source_run
from tpcompile.verify.command import memory_size, verify_bundle
from tpcompile.verify.files import open_source
from tpcompile.verify.shelf import SMALL_BYTES, Shelf
from tpcompile.verify.source_run import parts_of


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return decoders.compiled(tmp_path_factory.mktemp("decoder"))


def test_parts_hold_as_many_weights_as_fit(decoder: Path) -> None:
    model = open_source(decoder.parent / "model.onnx")
    whole = list(parts_of(model.graph, model, 10**9))
    assert [len(part.node) for part in whole] == [18]
    parts = list(parts_of(model.graph, model, 20_000))
    assert [name for part in parts for node in part.node for name in node.output] == [
        name for node in model.graph.node for name in node.output
    ]
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    read = [{name for node in part.node for name in node.input} & stored.keys() for part in parts]
    held = [sum(onnx.numpy_helper.to_array(stored[name]).nbytes for name in names) for names in read]
    assert len(parts) > 2 and all(size <= 20_000 or len(part.node) == 1 for size, part in zip(held, parts, strict=True))


def test_the_answer_is_the_same(decoder: Path) -> None:
    inputs = decoders.inputs()
    free, tight = (verify_bundle(decoder, inputs=inputs, memory_bytes=limit) for limit in (None, 50_000))
    assert free.ok and tight.ok
    assert [check.saw for check in tight.checks] == [check.saw for check in free.checks]
    assert tight.trials[0].worst[1] < 1e-5


def test_branches_run_part_by_part_too(tmp_path: Path) -> None:
    bundle, whole = handmade.branching(tmp_path / "b", 2)
    onnx.save(whole, tmp_path / "model.onnx")
    report = verify_bundle(bundle, memory_bytes=1)
    assert report.ok, report.faults
    assert [check.saw for check in report.checks] == [check.saw for check in verify_bundle(bundle).checks]


def test_damage_is_found_as_well(decoder: Path, tmp_path: Path) -> None:
    bundle = decoders.copied(decoder, tmp_path)
    edit_rank(bundle, 1, lambda model: store(model, "up", decoders.weights()["up"][:, 23:47]))
    report = verify_bundle(bundle, inputs=decoders.inputs(), memory_bytes=50_000)
    assert {"TP511", "TP531", "TP532"} <= {fault.code for fault in report.faults}


def test_one_session_at_a_time(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every session of the source and of the ranks is gone when the next is made."""
    open_now: list[int] = []
    most = 0

    class Counted:
        def __init__(self, *words: object, **options: object) -> None:
            nonlocal most
            gc.collect()
            open_now.append(1)
            most = max(most, len(open_now))
            self.inner = session(*words, **options)

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        def __del__(self) -> None:
            open_now.pop()

    session = simulate.ort.InferenceSession
    for module in (simulate, source_run):
        monkeypatch.setattr(module.ort, "InferenceSession", Counted)
    gc.collect()
    gc.freeze()  # what other tests left need not be walked each time
    assert verify_bundle(decoder, inputs=decoders.inputs(), memory_bytes=50_000).ok
    assert most == 1


def test_large_values_go_to_files_and_are_freed() -> None:
    shelf = Shelf(8 * SMALL_BYTES)
    values = [np.full(SMALL_BYTES // 4, number, np.float32) for number in range(4)]
    kept = [shelf.put({"x": value})["x"] for value in values]
    assert [isinstance(value, np.memmap) for value in kept] == [False, False, True, True]
    assert [float(value[5]) for value in kept] == [0, 1, 2, 3]
    del kept, values
    gc.collect()
    assert shelf.held_bytes == 0
    assert not isinstance(shelf.put({"x": np.zeros(SMALL_BYTES // 4, np.float32)})["x"], np.memmap)


@pytest.mark.parametrize(("text", "size"), [("8GB", 8 * 10**9), ("1.5 MB", 1_500_000), ("64kB", 64_000), ("77", 77)])
def test_sizes(text: str, size: int) -> None:
    assert memory_size(text) == size


def test_what_is_no_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "x", "--memory", "much"]) == 2
    assert capsys.readouterr().err == (
        "TP100 tpcompile verify: argument --memory: 'much' is no size: write it as 8GB or 512MB. "
        "Run `tpcompile verify --help`\n"
    )
