"""Bundles made by hand: whole models, and the ranks' files as a compiler should write them. No compiler is used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from tpcompile.bundle.manifest import (
    CollectiveEntry,
    DataFile,
    IOEntry,
    Manifest,
    Mesh,
    Placement,
    RankEntry,
    SourceFile,
    StatePair,
)  # fmt: skip
from tpcompile.run.split import collectives, split
from tpcompile.targets.collectives import make_collective

Array = np.ndarray[Any, Any]
Writer = Callable[[str, str], list[onnx.NodeProto]]
ALIGNMENT = 4096
ELEMENTS = {"float32": 1, "int64": 7, "int32": 6, "bool": 9, "float16": 10, "bfloat16": 16, "uint8": 2}


def model_of(
    nodes: Sequence[onnx.NodeProto],
    weights: Mapping[str, Array],
    inputs: Mapping[str, IOEntry],
    outputs: Mapping[str, IOEntry],
    values: Mapping[str, IOEntry] | None = None,
    rank: int | None = None,
) -> onnx.ModelProto:
    """A model with its weights inside; `rank` makes the sizes of cut inputs and outputs local."""

    def info(name: str, entry: IOEntry) -> onnx.ValueInfoProto:
        shape = list(entry.shape)
        if entry.placement is not None and rank is not None:
            shape[entry.placement.axis] = entry.placement.local_size(rank)
        return helper.make_tensor_value_info(name, ELEMENTS[entry.dtype], shape)

    graph = helper.make_graph(
        nodes, "handmade",
        [info(name, entry) for name, entry in inputs.items()],
        [info(name, entry) for name, entry in outputs.items()],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
        value_info=[info(name, entry) for name, entry in (values or {}).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("tpcompile", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run_whole(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a model on one device."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(feeds)), strict=True))


def write_bundle(
    folder: Path,
    ranks: Sequence[onnx.ModelProto],
    inputs: Mapping[str, IOEntry],
    outputs: Mapping[str, IOEntry],
    state: Sequence[StatePair] = (),
    roles: Mapping[str, str] | None = None,
) -> Path:
    """Write rank models with their weights outside, and bundle.json."""
    folder.mkdir(parents=True)
    entries = []
    for rank, model in enumerate(ranks):
        name, data = f"model_tp{len(ranks)}_rank{rank}.onnx", f"rank{rank}.bin"
        written = bytearray()
        for tensor in model.graph.initializer:
            content = onnx.numpy_helper.to_array(tensor).tobytes()
            if len(content) < 64:
                continue
            written += bytes(-len(written) % ALIGNMENT)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", data), ("offset", len(written)), ("length", len(content))):
                tensor.external_data.add(key=key, value=str(value))
            written += content
        serialized = model.SerializeToString(deterministic=True)
        (folder / name).write_bytes(serialized)
        files = ()
        if written:
            (folder / data).write_bytes(written)
            files = (DataFile(data, len(written)),)
        entries.append(RankEntry(rank, rank, 0, name, hashlib.sha256(serialized).hexdigest(), files))
    (folder / "plan.toml").write_text("")
    calls = tuple(
        CollectiveEntry(i, c.op, c.input, "float32", groups_of(ranks, c.output) if c.groups else (), "", "")
        for i, c in enumerate(collectives(split(ranks[0].graph)))
    )
    Manifest(
        tpcompile="0", source=SourceFile("model.onnx", 0), mesh=Mesh(len(ranks)), ranks=tuple(entries), inputs=inputs,
        outputs=outputs, plan="plan.toml", state=tuple(state), roles=roles or {}, collectives=calls,
    ).write(folder)  # fmt: skip
    return folder


def groups_of(ranks: Sequence[onnx.ModelProto], output: str) -> tuple[tuple[int, ...], ...]:
    """The groups in which the ranks run the collective that makes `output`, each once."""
    found = [c.groups for model in ranks for c in collectives(split(model.graph)) if c.output == output]
    return tuple(dict.fromkeys(found))


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def blocks(size: int, ranks: int) -> Placement:
    """Equal consecutive blocks, axis filled in by the caller."""
    part = size // ranks
    return Placement(1, tuple(((r * part, (r + 1) * part),) for r in range(ranks)))


def mlp(folder: Path, ranks: int, seed: int = 0) -> tuple[Path, onnx.ModelProto]:
    """Two MLP blocks with residuals (column, row, AllReduce) and a cut head (AllGather); and the whole model."""
    rng = np.random.default_rng(seed)
    width, hidden, classes = 12, 24, 20
    weights = {"head": normal(rng, width, classes)}
    for b in range(2):
        weights |= {f"up{b}": normal(rng, width, hidden), f"down{b}": normal(rng, hidden, width)}
    weights |= {f"bias{b}": normal(rng, width) * 5 for b in range(2)}
    inputs = {"x": IOEntry("float32", ("batch", width))}
    outputs = {"y": IOEntry("float32", ("batch", classes))}

    def nodes(reduce: Writer, gather: Writer) -> list[onnx.NodeProto]:
        made: list[onnx.NodeProto] = []
        x = "x"
        for b in range(2):
            made += [
                helper.make_node("MatMul", [x, f"up{b}"], [f"u{b}"]),
                helper.make_node("Tanh", [f"u{b}"], [f"a{b}"]),
                helper.make_node("MatMul", [f"a{b}", f"down{b}"], [f"p{b}"]),
                *reduce(f"p{b}", f"r{b}"),
                helper.make_node("Add", [f"r{b}", f"bias{b}"], [f"s{b}"]),
                helper.make_node("Add", [f"s{b}", x], [f"h{b}"]),
            ]
            x = f"h{b}"
        return [*made, helper.make_node("MatMul", [x, "head"], ["l"]), *gather("l", "y")]

    whole = model_of(nodes(renamed, renamed), weights, inputs, outputs)
    values = {f"r{b}": IOEntry("float32", ("batch", width)) for b in range(2)}
    values["g"] = IOEntry("float32", (classes, "batch"))
    models = []
    for rank in range(ranks):

        def part(array: Array, axis: int, rank: int = rank) -> Array:
            return np.ascontiguousarray(np.split(array, ranks, axis)[rank])

        local = {
            name: array if name.startswith("bias") else part(array, 0 if name.startswith("down") else 1)
            for name, array in weights.items()
        }
        models.append(model_of(nodes(reducing(ranks), gathering(ranks)), local, inputs, outputs, values, rank))
    return write_bundle(folder, models, inputs, outputs), whole


def renamed(x: str, y: str) -> list[onnx.NodeProto]:
    return [helper.make_node("Identity", [x], [y])]


def reducing(ranks: int) -> Writer:
    return lambda x, y: [make_collective("all_reduce", x, y, nb_rank=ranks, reduce_op="sum", name=f"reduce/{y}")]


def gathering(ranks: int) -> Writer:
    """Gather a cut last axis of a matrix: it is brought to the front and back."""
    return lambda x, y: [
        helper.make_node("Transpose", [x], [f"{x}/t"], perm=[1, 0]),
        make_collective("all_gather", f"{x}/t", "g", nb_rank=ranks, name=f"gather/{y}"),
        helper.make_node("Transpose", ["g"], [y], perm=[1, 0]),
    ]


def decoder(folder: Path, ranks: int, seed: int = 0) -> tuple[Path, onnx.ModelProto]:
    """One attention layer with an append cache, heads cut, causal by mask and positions; and the whole model."""
    rng = np.random.default_rng(seed)
    vocabulary, width, heads, size = 40, 16, 4, 6
    weights = {
        "embedding": normal(rng, vocabulary, width) * 6, "position": normal(rng, 64, width) * 4,
        **{name: normal(rng, width, heads * size) for name in "qkv"},
        "o": normal(rng, heads * size, width) * 3, "head": normal(rng, width, vocabulary),
    }  # fmt: skip
    cache = IOEntry("float32", ("batch", heads, "past", size), blocks(heads, ranks))
    grown = IOEntry("float32", ("batch", heads, "total", size), blocks(heads, ranks))
    inputs = {
        "ids": IOEntry("int64", ("batch", "seq")), "mask": IOEntry("int64", ("batch", "total")),
        "positions": IOEntry("int64", ("batch", "seq")), "past_k": cache, "past_v": cache,
    }  # fmt: skip
    outputs = {"logits": IOEntry("float32", ("batch", "seq", vocabulary)), "present_k": grown, "present_v": grown}
    constants = {
        "split": np.array([0, 0, -1, size]), "merge": np.array([0, 0, -1]), "one": np.array(1),
        "scale": np.array(size**-0.5, np.float32), "low": np.array(-1e9, np.float32),
        "axes12": np.array([1, 2], np.int64), "axis23": np.array([1, 3], np.int64),
        "zero": np.array(0, np.int64),
    }  # fmt: skip
    text = """
        e = Gather (embedding, ids)  pe = Gather (position, positions)  h = Add (e, pe)
        hq = MatMul (h, q)  hk = MatMul (h, k)  hv = MatMul (h, v)
        q4 = Reshape (hq, split)  k4 = Reshape (hk, split)  v4 = Reshape (hv, split)
        qt = Transpose <perm = [0, 2, 1, 3]> (q4)  kt = Transpose <perm = [0, 2, 1, 3]> (k4)
        vt = Transpose <perm = [0, 2, 1, 3]> (v4)
        present_k = Concat <axis = 2> (past_k, kt)  present_v = Concat <axis = 2> (past_v, vt)
        ktt = Transpose <perm = [0, 1, 3, 2]> (present_k)  s0 = MatMul (qt, ktt)  s1 = Mul (s0, scale)
        mshape = Shape (mask)  total = Gather (mshape, one)  columns = Range (zero, total, one)
        p4 = Unsqueeze (positions, axis23)  ahead = Greater (columns, p4)
        padded = Equal (mask, zero)  m4 = Unsqueeze (padded, axes12)  hidden = Or (ahead, m4)
        s2 = Where (hidden, low, s1)  w = Softmax <axis = -1> (s2)  c = MatMul (w, present_v)
        ct = Transpose <perm = [0, 2, 1, 3]> (c)  cm = Reshape (ct, merge)  po = MatMul (cm, o)
    """
    before = nodes_of(text)
    after = nodes_of("h2 = Add (r, h)  logits = MatMul (h2, head)")
    whole = model_of([*before, *renamed("po", "r"), *after], weights | constants, inputs, outputs)
    models = []
    for rank in range(ranks):

        def part(array: Array, axis: int, rank: int = rank) -> Array:
            return np.ascontiguousarray(np.split(array, ranks, axis)[rank])

        local = weights | {name: part(weights[name], 1) for name in "qkv"} | {"o": part(weights["o"], 0)}
        values = {"r": IOEntry("float32", ("batch", "seq", width))}
        nodes = [*nodes_of(text), *reducing(ranks)("po", "r"), *after]
        models.append(model_of(nodes, local | constants, inputs, outputs, values, rank))
    state = [StatePair(f"past_{x}", f"present_{x}", 2, "append") for x in "kv"]
    roles = {"tokens": "ids", "mask": "mask", "positions": "positions", "logits": "logits"}
    return write_bundle(folder, models, inputs, outputs, state, roles), whole


def nodes_of(text: str) -> list[onnx.NodeProto]:
    """Nodes from ONNX text."""
    return list(onnx.parser.parse_graph(f"g (float[N] unused) => (float[N] none) {{ {text} }}").node)


def branching(folder: Path, ranks: int, *, asks_its_rank: bool = False) -> tuple[Path, onnx.ModelProto]:
    """A cut product before an If; each branch ends it in its own way, one of them in a choice of its own.

    `asks_its_rank`: the condition holds on rank 0 alone. Returns the bundle and the whole model.
    """
    rng = np.random.default_rng(11)
    width, hidden = 10, 24
    weights = {
        "up": normal(rng, width, hidden), "near": normal(rng, hidden, width), "far": normal(rng, hidden, width) * 3,
        "head": normal(rng, width, width * ranks), "bias": normal(rng, width) * 5, "low": np.array(-9, np.float32),
        "merge": np.array([-1, width], np.int64), "zero": np.array(0, np.float32),
    }  # fmt: skip
    inputs = {"x": IOEntry("float32", ("batch", width)), "asked": IOEntry("bool", (1,))}
    outputs = {"y": IOEntry("float32", ("batch", width)), "z": IOEntry("float32", ("batch", width))}

    def graph_of(name: str, nodes: Sequence[onnx.NodeProto], made: Sequence[str]) -> onnx.GraphProto:
        values = [helper.make_tensor_value_info(name, 1, ["batch", width]) for name in made]
        return helper.make_graph(nodes, name, [], values)

    def nodes(reduce: Writer, gather: Writer) -> list[onnx.NodeProto]:
        least = [
            *nodes_of("p2 = MatMul (h, near)"), *reduce("p2", "r2"), *nodes_of("low_y = Max (r2, low)"),
        ]  # fmt: skip
        most = nodes_of("high_y = Add (x, below)")
        inner = helper.make_node(
            "If", ["positive"], ["else_y"], name="inner",
            then_branch=graph_of("most", most, ["high_y"]), else_branch=graph_of("least", least, ["low_y"]),
        )  # fmt: skip
        then = [
            *nodes_of("p = MatMul (h, far)"), *reduce("p", "r"), *nodes_of("b = Add (r, bias)  l = MatMul (b, head)"),
            *gather("l", "g2"), *nodes_of("then_y = ReduceMean <keepdims = 0> (g2, halves)  then_z = Identity (b)"),
        ]  # fmt: skip
        then.insert(0, helper.make_node("Constant", [], ["halves"], value=onnx.numpy_helper.from_array(np.array([1]))))
        other = [inner, *nodes_of("t2 = MatMul (h, far)"), *reduce("t2", "else_z")]
        choice = helper.make_node(
            "If", ["condition"], ["chosen", "z"], name="choice",
            then_branch=graph_of("then", then, ["then_y", "then_z"]),
            else_branch=graph_of("else", other, ["else_y", "else_z"]),
        )  # fmt: skip
        text = "below = Neg (bias)  u = MatMul (x, up)  h = Tanh (u)  total = ReduceSum <keepdims = 0> (x)"
        positive = "condition = Greater (side, zero)" if asks_its_rank else "condition = Squeeze (asked)"
        after = nodes_of("y = Mul (chosen, bias)")
        return [*nodes_of(f"{text}  positive = Greater (total, zero)  {positive}"), choice, *after]

    def gathered(x: str, y: str) -> list[onnx.NodeProto]:
        return [*gathering(ranks)(x, f"{x}/w"), *folded(f"{x}/w", y)]

    def folded(x: str, y: str) -> list[onnx.NodeProto]:
        shape = np.array([0, ranks, width])
        split = helper.make_node("Constant", [], [f"{x}/s"], value=onnx.numpy_helper.from_array(shape))
        return [split, helper.make_node("Reshape", [x, f"{x}/s"], [y])]

    weights["side"] = np.array(1, np.float32)
    whole = model_of(nodes(renamed, folded), weights, inputs, outputs)
    models = []
    for rank in range(ranks):
        local = dict(weights)
        for name, axis in (("up", 1), ("near", 0), ("far", 0), ("head", 1)):
            local[name] = np.ascontiguousarray(np.split(weights[name], ranks, axis)[rank])
        if asks_its_rank and rank:
            local["side"] = np.array(-1, np.float32)
        models.append(model_of(nodes(reducing(ranks), gathered), local, inputs, outputs, rank=rank))
    return write_bundle(folder, models, inputs, outputs), whole
