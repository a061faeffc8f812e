"""Repositories for Triton: read by its own protobuf, refused where it would serve wrong numbers, whole or absent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from tests import zoo
from tests.plan.models import TWO_LAYERS, model
from tests.run import handmade
from tests.targets.triton_stub import read_config
from tpcompile.bundle.manifest import EngineEntry, IOEntry, Manifest
from tpcompile.cli import main
from tpcompile.errors import Refused
from tpcompile.targets.triton import write_repository


def profile(manifest: Manifest) -> dict[str, Any]:
    """A profile of the first input."""
    return {next(iter(manifest.inputs)): {"min": (1, 12), "opt": (2, 12), "max": (8, 12)}}


def with_engines(bundle: Path, change: Callable[[int, EngineEntry], EngineEntry] = lambda rank, entry: entry) -> Path:
    """Give each rank an engine file that no TensorRT wrote."""
    manifest = Manifest.read(bundle)
    ranks = []
    for entry in manifest.ranks:
        content = f"engine of rank {entry.rank}".encode()
        name = f"model_tp{manifest.world_size}_rank{entry.rank}.tensorrt.engine"
        (bundle / name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        engine = EngineEntry(
            name, len(content), digest, "tensorrt", "11.0.0.1", "9.0", "float32", (profile(manifest),), 2
        )
        ranks.append(replace(entry, engines=(change(entry.rank, engine),)))
    replace(manifest, ranks=tuple(ranks)).write(bundle)
    return bundle


def change_manifest(bundle: Path, **fields: Any) -> None:
    replace(Manifest.read(bundle), **fields).write(bundle)


def test_a_repository_for_the_multi_device_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = with_engines(handmade.mlp(tmp_path / "mlp.tp2", 2)[0])
    assert main(["triton", str(bundle), str(tmp_path / "models")]) == 0
    written = tmp_path / "models" / "mlp.tp2"
    assert capsys.readouterr().out == f"wrote {written}: tritonserver --model-repository {tmp_path / 'models'}\n"
    found = read_config(written / "config.pbtxt")
    assert (found.name, found.backend, found.max_batch_size) == ("mlp.tp2", "tensorrt", 0)
    assert [(i.name, i.data_type, list(i.dims)) for i in found.input] == [("x", 11, [-1, 12])]
    assert [(o.name, o.data_type, list(o.dims)) for o in found.output] == [("y", 11, [-1, 20])]
    (group,) = found.instance_group
    assert (group.Kind.Name(group.kind), group.count) == ("KIND_MODEL", 1)
    assert {key: value.string_value for key, value in found.parameters.items()} == {
        "enable_multi_device": "true",
        "multi_device_gpus": "0,1",
        "multi_device_per_rank_engines": "true",
    }
    plans = sorted(path.name for path in (written / "1").iterdir())
    assert plans == ["model.plan", "model.plan.rank0", "model.plan.rank1"]
    assert (written / "1" / "model.plan").readlink() == Path("model.plan.rank0")
    for rank in range(2):
        engine, plan = bundle / f"model_tp2_rank{rank}.tensorrt.engine", written / "1" / f"model.plan.rank{rank}"
        assert plan.samefile(engine), "the same bytes, not a copy of them"
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["mlp.tp2"]


def test_copies_where_no_link_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = with_engines(handmade.mlp(tmp_path / "b", 2)[0])

    def across_disks(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("tpcompile.targets.triton.os.link", across_disks)
    written = write_repository(bundle, tmp_path / "models", name="chat")
    assert (written / "1" / "model.plan").read_bytes() == b"engine of rank 0"
    assert read_config(written / "config.pbtxt").name == "chat"


def test_one_rank_needs_no_multi_device_mode(tmp_path: Path) -> None:
    written = write_repository(with_engines(handmade.mlp(tmp_path / "b", 1)[0]), tmp_path / "models")
    found = read_config(written / "config.pbtxt")
    assert found.instance_group[0].kind == 1 and not found.parameters  # KIND_GPU
    assert [path.name for path in (written / "1").iterdir()] == ["model.plan"]


def test_shapes_of_every_kind(tmp_path: Path) -> None:
    bundle = with_engines(handmade.mlp(tmp_path / "b", 2)[0])
    inputs = {
        "x": IOEntry("float16", ("batch", "", 12)), "flag": IOEntry("bool", ()), "size": IOEntry("int64", (2,)),
        'a "name"\\': IOEntry("bfloat16", ("a", "b")),
    }  # fmt: skip
    manifest = Manifest.read(bundle)
    sized = {"size": {"min": (1, 1), "opt": (1, 1), "max": (2, 2)}, "x": {"min": (1,), "opt": (1,), "max": (1,)}}
    ranks = tuple(
        replace(entry, engines=tuple(replace(engine, profiles=(sized,)) for engine in entry.engines))
        for entry in manifest.ranks
    )
    change_manifest(bundle, inputs=inputs, ranks=ranks)
    found = read_config(write_repository(bundle, tmp_path / "models") / "config.pbtxt")
    assert [(i.name, i.data_type, list(i.dims)) for i in found.input] == [
        ("x", 10, [-1, -1, 12]), ("flag", 1, [1]), ("size", 9, [2]), ('a "name"\\', 14, [-1, -1]),
    ]  # fmt: skip
    assert [i.HasField("reshape") for i in found.input] == [False, True, False, False]
    assert [i.is_shape_tensor for i in found.input] == [False, False, True, False]


def refusal(bundle: Path, repository: Path, **options: Any) -> str:
    with pytest.raises(Refused) as caught:
        write_repository(bundle, repository, **options)
    assert not repository.exists()
    return str(caught.value)


def test_caches_are_refused_with_the_reason(tmp_path: Path) -> None:
    bundle = with_engines(handmade.decoder(tmp_path / "b", 2)[0])
    assert refusal(bundle, tmp_path / "models") == (
        "TP740 triton: past_k, past_v, present_k and 1 more (caches) differ between ranks, and Triton's TensorRT "
        "backend gives every rank the inputs of rank 0 and answers with its outputs alone. "
        "`tpcompile triton BUNDLE DIR --backend python` has tpcompile's own ranks serve it"
    )


def test_engines_that_are_not_there(tmp_path: Path) -> None:
    bundle = handmade.mlp(tmp_path / "b", 2)[0]
    remedy = "Build them with `tpcompile engine BUNDLE --engine tensorrt`, or use --backend python"
    assert refusal(bundle, tmp_path / "models") == (
        f"TP741 triton: the bundle has no engines, and Triton's backend loads those of tensorrt. {remedy}"
    )
    with_engines(bundle, lambda rank, entry: replace(entry, library="tensorrt_rtx"))
    assert refusal(bundle, tmp_path / "models") == (
        "TP741 triton: the bundle has only engines of tensorrt_rtx, and Triton's backend loads those of tensorrt. "
        f"{remedy}"
    )


def test_types_that_triton_has_not(tmp_path: Path) -> None:
    bundle = handmade.mlp(tmp_path / "b", 2)[0]
    change_manifest(bundle, inputs={"x": IOEntry("float8_e4m3fn", ("batch", 12))})
    for backend in ("tensorrt", "python"):
        assert refusal(bundle, tmp_path / "models", backend=backend) == (
            "TP742 input x: is float8_e4m3fn, a type that Triton has not. Cast it within the model"
        )


def test_engines_with_two_profiles(tmp_path: Path) -> None:
    bundle = handmade.mlp(tmp_path / "b", 2)[0]
    with_engines(bundle, lambda rank, entry: replace(entry, profiles=entry.profiles * 2))
    assert refusal(bundle, tmp_path / "models").splitlines()[1] == (
        "TP743 rank 1: model_tp2_rank1.tensorrt.engine: has 2 profiles, and Triton's multi-device mode uses one. "
        "Build the engines with one profile per input"
    )


def test_engines_that_were_changed_or_do_not_belong_together(tmp_path: Path) -> None:
    bundle = with_engines(
        handmade.mlp(tmp_path / "b", 2)[0], lambda rank, entry: replace(entry, compute_capability=f"{8 + rank}.0")
    )
    (bundle / "model_tp2_rank1.tensorrt.engine").write_bytes(b"engine of rank 9")
    assert refusal(bundle, tmp_path / "models") == (
        "TP744 rank 1: model_tp2_rank1.tensorrt.engine: is not the engine that bundle.json describes: its "
        "sha256 differs. Build the engines again, or copy the bundle again\n"
        "TP744 engines: were built by TensorRT 11.0.0.1 for 8.0 and 11.0.0.1 for 9.0. Build all of them together"
    )


def test_caches_without_tokens(tmp_path: Path) -> None:
    bundle = handmade.decoder(tmp_path / "b", 2)[0]
    change_manifest(bundle, roles={})
    assert refusal(bundle, tmp_path / "models", backend="python") == (
        "TP745 the role tokens: the model has caches, but no input is known as its token ids, so nothing says when a "
        "sequence goes on. Compile with --role tokens=INPUT"
    )


def test_what_is_there_stays_unless_forced(tmp_path: Path) -> None:
    bundle = with_engines(handmade.mlp(tmp_path / "b", 2)[0])
    written = write_repository(bundle, tmp_path / "models")
    (written / "labels.txt").write_text("mine")
    with pytest.raises(Refused, match="TP411"):
        write_repository(bundle, tmp_path / "models")
    assert (written / "labels.txt").exists()
    write_repository(bundle, tmp_path / "models", force=True)
    assert not (written / "labels.txt").exists()
    (tmp_path / "models" / "other").mkdir()
    (tmp_path / "models" / "other" / "notes").write_text("mine")
    with pytest.raises(Refused) as caught:
        write_repository(bundle, tmp_path / "models", name="other", force=True)
    assert str(caught.value) == (
        f"TP412 {tmp_path}/models/other: exists and is a folder without config.pbtxt. "
        "Only an empty folder or one with config.pbtxt is ever replaced: choose another output"
    )


def no_engine_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines come from `with_engines`: what is tested is what happens around building them."""

    def build(folder: Path, manifest: Manifest, *rest: Any) -> SimpleNamespace:
        return SimpleNamespace(manifest=Manifest.read(with_engines(folder)), notes=())

    monkeypatch.setattr("tpcompile.targets.engines.build_engines", build)
    monkeypatch.setattr("tpcompile.api._engine_request", lambda *wishes: object())


def test_compiling_into_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_engine_is_built(monkeypatch)
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    words = [str(tmp_path / "m.onnx"), "--tp", "2", "--engine", "tensorrt", "--triton", str(tmp_path / "models")]
    assert main(words) == 0
    written = tmp_path / "models" / "m.tp2"
    assert read_config(written / "config.pbtxt").parameters["multi_device_gpus"].string_value == "0,1"
    engine = tmp_path / "m.tp2" / "model_tp2_rank1.tensorrt.engine"
    assert (written / "1" / "model.plan.rank1").samefile(engine)


@pytest.mark.parametrize("engine", [[], ["--engine", "tensorrt-rtx"]])
def test_a_repository_needs_engines_of_tensorrt(
    engine: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    assert main([str(tmp_path / "m.onnx"), "--tp", "2", *engine, "--triton", f"{tmp_path}/models"]) == 2
    assert capsys.readouterr().err == (
        f"TP741 --triton {tmp_path}/models: Triton's TensorRT backend loads engines of tensorrt, and "
        f"{engine[-1] if engine else 'none'} is to be built. Add --engine tensorrt, or leave out --triton\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_caches_are_refused_before_an_engine_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_engine_is_built(monkeypatch)
    zoo.save("llama__dynamo__kv", tmp_path / "m.onnx")
    words = [str(tmp_path / "m.onnx"), "--tp", "2", "--engine", "tensorrt", "--triton", str(tmp_path / "models")]
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("TP740 triton: past_key_values.0.key, ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]
