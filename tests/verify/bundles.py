"""Small bundles made by hand, so that the checks are tested against files no compiler wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tpcompile.targets.collectives import make_collective

VOCABULARY, WIDTH, HIDDEN = 10, 6, 8
Array = np.ndarray[Any, np.dtype[Any]]


def weights() -> dict[str, Array]:
    """Mixed signs, biases of order 5, so that a bias added twice shows."""
    rng = np.random.default_rng(7)
    shapes = {
        "table": (VOCABULARY, WIDTH),
        "up": (WIDTH, HIDDEN),
        "up_bias": (HIDDEN,),
        "down": (HIDDEN, WIDTH),
        "down_bias": (WIDTH,),
        "head": (WIDTH, VOCABULARY),
    }
    found = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found["down_bias"] *= 5
    found["scale"] = np.float32(0.25)
    return found


def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    """A node with its output as its name; inputs separated by spaces."""
    return helper.make_node(op, inputs.split(), output.split(), name=f"{output}_node", **attributes)


def source_model() -> onnx.ModelProto:
    """Embedding, an MLP with biases and a residual, a scale, logits over the vocabulary."""
    nodes = [
        node("Gather", "table ids", "embedded"),
        node("MatMul", "embedded up", "up_out"),
        node("Add", "up_out up_bias", "up_sum"),
        node("Relu", "up_sum", "active"),
        node("MatMul", "active down", "down_out"),
        node("Add", "down_out down_bias", "down_sum"),
        node("Add", "embedded down_sum", "residual"),
        node("Mul", "residual scale", "scaled"),
        node("MatMul", "scaled head", "logits"),
    ]
    return _model(nodes, weights())


def _model(nodes: Sequence[onnx.NodeProto], stored: dict[str, Array]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "seq", VOCABULARY])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("tpcompile", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def rank_model(rank: int, tp: int, hidden_parts: Sequence[int]) -> onnx.ModelProto:
    """A rank: vocabulary in `tp` blocks (the first ones larger), the hidden axis in the parts named per rank."""
    full = weights()
    rows = np.array_split(np.arange(VOCABULARY), tp)
    columns = np.array_split(np.arange(HIDDEN), max(hidden_parts) + 1)[hidden_parts[rank]]
    longest = len(rows[0])
    mine = hidden_parts[rank]
    copies = [other for other in range(tp) if hidden_parts[other] == mine]
    group = [
        [r for r in range(tp) if hidden_parts[r] == part][copies.index(rank)] for part in range(max(hidden_parts) + 1)
    ]
    groups = group if len(group) < tp else []
    valid = np.concatenate([np.arange(len(block)) + r * longest for r, block in enumerate(rows)])
    stored: dict[str, Array] = {
        "table": full["table"][rows[rank]],
        "up": full["up"][:, columns],
        "up_bias": full["up_bias"][columns],
        "down": full["down"][columns],
        "down_bias": full["down_bias"] if mine == 0 else np.zeros(WIDTH, np.float32),
        "scale": full["scale"],
        "head": full["head"][:, rows[rank]],
        "offset": np.int64(rows[rank][0]),
        "none": np.int64(0),
        "rows": np.int64(VOCABULARY),
        "count": np.int64(len(rows[rank])),
        "nothing": np.float32(0),
        "last": np.array([-1]),
        "pads": np.array([0, 0, 0, longest - len(rows[rank]), 0, 0]),
        "valid": valid,
    }
    nodes = [
        node("Less", "ids none", "negative"),
        node("Add", "ids rows", "wrapped"),
        node("Where", "negative wrapped ids", "counted"),
        node("Sub", "counted offset", "moved"),
        node("GreaterOrEqual", "moved none", "above"),
        node("Less", "moved count", "below"),
        node("And", "above below", "mine"),
        node("Where", "mine moved none", "row"),
        node("Gather", "table row", "looked_up"),
        node("Unsqueeze", "mine last", "mask"),
        node("Where", "mask looked_up nothing", "embedded_part"),
        make_collective("all_reduce", "embedded_part", "embedded", nb_rank=tp, name="reduce_0", reduce_op="sum"),
        node("MatMul", "embedded up", "up_out"),
        node("Add", "up_out up_bias", "up_sum"),
        node("Relu", "up_sum", "active"),
        node("MatMul", "active down", "down_out"),
        node("Add", "down_out down_bias", "down_part"),
        make_collective(
            "all_reduce", "down_part", "down_sum", nb_rank=len(group), name="reduce_1", groups=groups, reduce_op="sum"
        ),
        node("Add", "embedded down_sum", "residual"),
        node("Mul", "residual scale", "scaled"),
        node("MatMul", "scaled head", "logits_part"),
        node("Transpose", "logits_part", "logits_first", perm=[2, 0, 1]),
        node("Pad", "logits_first pads", "logits_padded"),
        make_collective("all_gather", "logits_padded", "logits_joined", nb_rank=tp, name="gather_2"),
        node("Gather", "logits_joined valid", "logits_valid"),
        node("Transpose", "logits_valid", "logits", perm=[1, 2, 0]),
    ]
    return _model(nodes, stored)


def make_bundle(folder: Path, tp: int, hidden_parts: Sequence[int] | None = None) -> Path:
    """Write `model.onnx` and the bundle `out` beside it; returns the bundle's folder."""
    parts = list(hidden_parts or range(tp))
    onnx.save(source_model(), folder / "model.onnx")
    out = folder / "out"
    out.mkdir()
    (out / "plan.toml").write_text("")
    io = {"dtype": "int64", "shape": ["batch", "seq"], "placement": None}
    columns = [[r for r in range(tp) if parts[r] == part] for part in range(max(parts) + 1)]
    groups = [list(group) for group in zip(*columns, strict=True)] if len(columns) < tp else []
    common = {"dtype": "float32", "bytes": "", "because": ""}
    manifest = {
        "format": 1,
        "tpcompile": "by hand",
        "source": {"file": "model.onnx", "bytes": (folder / "model.onnx").stat().st_size},
        "mesh": {"tp": tp, "pp": 1},
        "ranks": [],
        "inputs": {"ids": io},
        "outputs": {"logits": {"dtype": "float32", "shape": ["batch", "seq", VOCABULARY], "placement": None}},
        "state": [],
        "roles": {},
        "collectives": [
            {"index": 0, "op": "all_reduce", "value": "embedded", "groups": [], **common},
            {"index": 1, "op": "all_reduce", "value": "down_sum", "groups": groups, **common},
            {"index": 2, "op": "all_gather", "value": "logits_joined", "groups": [], **common},
        ],
        "plan": "plan.toml",
    }
    for rank in range(tp):
        name = f"model_tp{tp}_rank{rank}.onnx"
        onnx.save(
            rank_model(rank, tp, parts),
            out / name,
            save_as_external_data=True,
            location=f"rank{rank}.bin",
            size_threshold=64,
        )
        size = (out / f"rank{rank}.bin").stat().st_size
        entry = {
            "rank": rank,
            "tp": rank,
            "pp": 0,
            "model": name,
            "data": [{"file": f"rank{rank}.bin", "bytes": size}],
            "engines": [],
        }
        manifest["ranks"].append(entry | {"model_sha256": _digest(out / name)})
    (out / "bundle.json").write_text(json.dumps(manifest))
    return out


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def edit_rank(bundle: Path, rank: int, change: Callable[[onnx.ModelProto], None]) -> None:
    """Change a rank's model (weights within the file afterwards) as a wrong compiler would have written it."""
    manifest = json.loads((bundle / "bundle.json").read_text())
    entry = manifest["ranks"][rank]
    model = onnx.load(bundle / entry["model"])
    change(model)
    onnx.save(model, bundle / entry["model"])
    entry["model_sha256"] = _digest(bundle / entry["model"])
    (bundle / "bundle.json").write_text(json.dumps(manifest))


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((bundle / "bundle.json").read_text())
    change(manifest)
    (bundle / "bundle.json").write_text(json.dumps(manifest))


def stored(model: onnx.ModelProto, name: str) -> Array:
    return next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == name)


def store(model: onnx.ModelProto, name: str, array: Any) -> None:
    """Replace a stored tensor."""
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array), name))


def made_by(model: onnx.ModelProto, output: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if output in n.output)


def bypass(model: onnx.ModelProto, output: str) -> None:
    """Remove the node that makes `output`; its readers read its first input."""
    gone = made_by(model, output)
    model.graph.node.remove(gone)
    for other in model.graph.node:
        other.input[:] = [gone.input[0] if name == output else name for name in other.input]
