"""bundle.json: what is written is read back, and what cannot be trusted is refused with the whole text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.run import handmade
from tpcompile.bundle.manifest import Manifest, ShapeRange
from tpcompile.errors import Refused


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return handmade.decoder(tmp_path / "b", 2)[0]


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((bundle / "bundle.json").read_text())
    change(content)
    (bundle / "bundle.json").write_text(json.dumps(content))


def test_what_is_written_is_read_back(bundle: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(bundle)
    assert manifest.world_size == 2
    assert manifest.inputs["past_k"].placement is not None
    assert manifest.inputs["past_k"].placement.ranges == (((0, 2),), ((2, 4),))
    assert manifest.inputs["past_k"].placement.local_size(1) == 2
    assert manifest.inputs["past_k"].placement.global_size == 4
    manifest.write(tmp_path)
    assert json.loads((tmp_path / "bundle.json").read_text()) == json.loads((bundle / "bundle.json").read_text())


def test_keys_always_stand_there(bundle: Path) -> None:
    content = json.loads((bundle / "bundle.json").read_text())
    assert list(content) == [
        "format", "tpcompile", "source", "mesh", "ranks", "inputs", "outputs", "state", "roles", "sizes", "dialect",
        "collectives", "plan",
    ]  # fmt: skip
    assert content["ranks"][0]["engines"] == []
    assert content["inputs"]["ids"]["placement"] is None
    assert content["ranks"][0]["data"] == [{"file": "rank0.bin", "bytes": (bundle / "rank0.bin").stat().st_size}]


def test_unknown_keys_are_kept(bundle: Path) -> None:
    edit(bundle, lambda c: c.update(later={"a": 1}))
    assert Manifest.read(bundle).to_json()["later"] == {"a": 1}


ENGINE: dict[str, Any] = {
    "file": "rank0.bin", "bytes": 1, "sha256": "00", "library": "tensorrt_rtx", "version": "1.7.1.116",
    "compute_capability": "8.9", "precision": "float32",
    "profiles": [{"ids": {"min": [1, 1], "opt": [1, 16], "max": [4, 512]}}], "collectives": 2,
}  # fmt: skip
"""Its file is one that lies in the handmade bundle; the size is set by `with_engine`."""


def with_engine(**changes: Any) -> Callable[[dict[str, Any]], object]:
    """Give rank 0 an engine as above, with some keys changed."""

    def change(content: dict[str, Any]) -> None:
        size = content["ranks"][0]["data"][0]["bytes"]
        content["ranks"][0]["engines"].append(ENGINE | {"bytes": size} | changes)

    return change


def test_engines_are_read_as_they_were_written(bundle: Path, tmp_path: Path) -> None:
    edit(bundle, with_engine())
    manifest = Manifest.read(bundle)
    (engine,) = manifest.ranks[0].engines
    assert (engine.library, engine.version, engine.compute_capability) == ("tensorrt_rtx", "1.7.1.116", "8.9")
    assert (engine.precision, engine.collectives) == ("float32", 2)
    assert engine.profiles == ({"ids": ShapeRange((1, 1), (1, 16), (4, 512))},)
    manifest.write(tmp_path)
    assert json.loads((tmp_path / "bundle.json").read_text()) == json.loads((bundle / "bundle.json").read_text())


def sizes(low: list[int], opt: list[int], high: list[int]) -> list[dict[str, Any]]:
    return [{"ids": {"min": low, "opt": opt, "max": high}}]


FAULTS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda c: c.update(format=2),
     "TP452 {path}: format 2, and this tpcompile reads format 1. Compile the model again with this version, or install "
     "the version that wrote it"),
    (lambda c: c.pop("state"), "TP453 {path}: lacks the key state. Compile the model again"),
    (lambda c: c["ranks"][1].pop("model"), "TP453 {path}: lacks the key ranks[1].model. Compile the model again"),
    (lambda c: c["mesh"].update(tp="2"),
     "TP453 {path}: mesh.tp should be an integer of at least 1, found '2'. Compile the model again"),
    (lambda c: c["inputs"]["ids"].update(shape=[1.5]),
     "TP453 {path}: inputs.ids.shape should be a list of sizes and symbols, found [1.5]. Compile the model again"),
    (lambda c: c["inputs"]["past_k"]["placement"].update(ranges=[[[0, 2]], []]),
     "TP453 {path}: inputs.past_k.placement.ranges should be one non-empty list of [low, high) ranges per rank, found "
     "[[[0, 2]], []]. Compile the model again"),
    (lambda c: c["state"][0].update(kind="rolling"),
     "TP453 {path}: state[0].kind should be append or in_place, found 'rolling'. Compile the model again"),
    (lambda c: c["collectives"][0].update(groups=[0, 1]),
     "TP453 {path}: collectives[0].groups should be a list of lists of ranks, found [0, 1]. Compile the model again"),
    (lambda c: c.update(ranks={}), "TP453 {path}: ranks should be a list, found {{}}. Compile the model again"),
    (lambda c: c["ranks"][0].update(model="../evil.onnx"),
     "TP454 {path}: ranks[0].model is '../evil.onnx', which is not a plain file name. A bundle reads only files of its "
     "own folder: do not run this one"),
    (lambda c: c["ranks"][0]["data"][0].update(file=".."),
     "TP454 {path}: ranks[0].data[0].file is '..', which is not a plain file name. A bundle reads only files of its "
     "own folder: do not run this one"),
    (lambda c: c["ranks"][0]["data"][0].update(file="absent.bin"),
     "TP455 {folder}/absent.bin: the file that rank 0 needs is not there. Copy the whole bundle folder, or compile the "
     "model again"),
    (lambda c: c["ranks"][0]["data"][0].update(bytes=7),
     "TP456 {folder}/rank0.bin: holds {size} bytes instead of 7. The copy is incomplete or comes from another compile: "
     "copy the bundle again"),
    (lambda c: (c["ranks"].pop(), c["roles"].update(mask="m")),
     "TP457 {path}: lists ranks [0] for a world of 2; role mask names m, which is no input or output. Compile "
     "the model "
     "again"),
    (lambda c: c["inputs"]["past_k"]["placement"].update(ranges=[[[0, 1]], [[2, 4]]]),
     "TP457 {path}: the ranges of past_k do not cover its axis 1; state past_k -> present_k is cut differently at its "
     "two ends. Compile the model again"),
    (lambda c: c["inputs"]["past_k"]["placement"].update(axis=9, ranges=[[[0, 4]]]),
     "TP457 {path}: past_k is cut along axis 9 of 4; past_k has ranges for 1 ranks, not 2; state past_k -> "
     "present_k is "
     "cut differently at its two ends. Compile the model again"),
    (lambda c: c["state"][0].update(input="gone"),
     "TP457 {path}: state gone -> present_k names no input and output of the model. Compile the model again"),
    (with_engine(file="a/b.engine"),
     "TP454 {path}: ranks[0].engines[0].file is 'a/b.engine', which is not a plain file name. A bundle reads only "
     "files of its own folder: do not run this one"),
    (with_engine(file="absent.engine"),
     "TP455 {folder}/absent.engine: the file that rank 0 needs is not there. Copy the whole bundle folder, or compile "
     "the model again"),
    (with_engine(bytes=7),
     "TP456 {folder}/rank0.bin: holds {size} bytes instead of 7. The copy is incomplete or comes from another compile: "
     "copy the bundle again"),
    (with_engine(library="tensorflow"),
     "TP453 {path}: ranks[0].engines[0].library should be tensorrt or tensorrt_rtx, found 'tensorflow'. Compile the "
     "model again"),
    (with_engine(profiles=sizes([1, 1], [1, "b"], [2, 2])),  # type: ignore[list-item]
     "TP453 {path}: ranks[0].engines[0].profiles[0].ids.opt should be a list of sizes, found [1, 'b']. Compile the "
     "model again"),
    (with_engine(profiles=sizes([1, 2], [1, 1], [2, 2])),
     "TP457 {path}: the profile of ids in rank0.bin is not in order. Compile the model again"),
    (with_engine(profiles=sizes([1], [1, 1], [2, 2])),
     "TP457 {path}: the profile of ids in rank0.bin differs in its numbers of axes. Compile the model again"),
    (with_engine(profiles=[{"x": {"min": [], "opt": [], "max": []}}]),
     "TP457 {path}: rank0.bin has a profile of x, which is no input. Compile the model again"),
    (lambda c: (with_engine()(c), with_engine()(c)),
     "TP457 {path}: rank 0 has several engines of one library. Compile the model again"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(FAULTS)))
def test_faults(bundle: Path, index: int) -> None:
    change, text = FAULTS[index]
    size = (bundle / "rank0.bin").stat().st_size
    edit(bundle, change)
    with pytest.raises(Refused) as caught:
        Manifest.read(bundle)
    assert str(caught.value) == text.format(path=bundle / "bundle.json", folder=bundle, size=size)


def test_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        Manifest.read(tmp_path)
    assert str(caught.value) == (
        f"TP451 {tmp_path}: no bundle.json in this folder. Give the folder that `tpcompile MODEL --tp N` wrote"
    )


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(Refused) as caught:
        Manifest.read(tmp_path / "model.onnx")
    assert str(caught.value) == (
        f"TP451 {tmp_path / 'model.onnx'}: is a file, and a bundle is a folder. "
        "Give the folder that `tpcompile MODEL --tp N` wrote"
    )


def test_not_json(tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text("{")
    with pytest.raises(Refused, match=r"^TP451 .*bundle\.json: cannot be read as JSON \(Expecting"):
        Manifest.read(tmp_path)
    (tmp_path / "bundle.json").write_text("[" * 100_000)
    with pytest.raises(Refused, match=r"^TP451 "):
        Manifest.read(tmp_path)


def test_a_node_needs_only_its_own_files(bundle: Path) -> None:
    (bundle / "rank1.bin").unlink()
    Manifest.read(bundle, ranks=[0])
    with pytest.raises(Refused, match="TP455"):
        Manifest.read(bundle, ranks=[1])


def test_writing_refuses_nonsense(bundle: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    manifest = Manifest.read(bundle)
    with pytest.raises(Refused, match=r"TP457 bundle\.json: role logits names nothing"):
        replace(manifest, roles={"logits": "nothing"}).write(tmp_path)
    assert not (tmp_path / "bundle.json").exists()
