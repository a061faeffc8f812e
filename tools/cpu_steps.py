"""What one step of a model takes on CPUs, each measurement in processes of its own: bench_run and bench_estimates.

    whole   a model, one process, one core
    half    rank 0's model of a bundle without its collectives, in two processes at once that never wait for each other
    ranks   a bundle as `tpcompile run` runs it
    chain   AllReduces in a row, and bare MPI on as many bytes
    parts   what a core reads, computes, and starts, alone or while another does the same: what a topology tells of it

Each time is the quickest of many calls: what the machine gives when nobody else wants it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tpcompile.bundle.manifest import CollectiveEntry, IOEntry, Manifest, Mesh, RankEntry, SourceFile  # noqa: E402
from tpcompile.run import mpi, tensors  # noqa: E402
from tpcompile.run.mpirun import environment, mpirun_command  # noqa: E402
from tpcompile.run.rank import load  # noqa: E402
from tpcompile.targets.collectives import is_collective, make_collective, read_collective  # noqa: E402

RANKS, CHAIN = 2, 20
DECODE, PREFILL = (1, 128), (128, 0)
"""(sequence, past) of the two steps that are measured."""
REPETITIONS = {DECODE: 100, PREFILL: 8}
SIZES = {"4 KB": 4 << 10, "1 MB": 1 << 20}


def feeds(manifest: Manifest, sequence: int, past: int) -> dict[str, Any]:
    """Whole inputs for one step: ids, a mask of ones, ascending positions, caches of small numbers."""
    rng = np.random.default_rng(0)
    roles = {name: role for role, name in manifest.roles.items()}
    sizes = {"batch": 1, "seq": sequence, "past": past, "past + seq": past + sequence}
    made = {}
    for name, entry in manifest.inputs.items():
        shape = [size if isinstance(size, int) else sizes[size] for size in entry.shape]
        content = {
            "tokens": lambda shape=shape: rng.integers(0, 32000, shape),
            "mask": lambda shape=shape: np.ones(shape),
            "positions": lambda: np.arange(past, past + sequence)[None],
        }.get(roles.get(name, ""), lambda shape=shape: rng.standard_normal(shape) * 0.1)()
        made[name] = content.astype(tensors.TYPES[entry.dtype][1])
    return made


def seconds(step: Callable[[], object], repetitions: int, before: Callable[[], object] = lambda: None) -> float:
    """The quickest call of `step`: what the machine gives when nobody else wants it."""
    took = []
    for _ in range(repetitions):
        before()
        started = time.perf_counter()
        step()
        took.append(time.perf_counter() - started)
    return min(took)


def single(model: onnx.ModelProto, folder: Path) -> Any:
    """One session on one core, with the settings that ranks use."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def steps_of(session: Any, inputs: dict[str, Any]) -> Callable[[], object]:
    binding = session.io_binding()
    bound = {name: tensors.from_numpy(array) for name, array in inputs.items()}

    def step() -> None:
        for name, value in bound.items():
            binding.bind_ortvalue_input(name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name, "cpu")
        session.run_with_iobinding(binding)

    return step


def alone(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with each collective replaced by what gives the same shape without asking anyone."""
    for node in model.graph.node:
        if is_collective(node):
            found = read_collective(node)
            gathers = found.op == "all_gather"
            local = helper.make_node("Concat", [found.input] * found.nb_rank, [found.output], axis=0)
            node.CopyFrom(local if gathers else helper.make_node("Identity", [found.input], [found.output]))
    return model


def measure_whole(arguments: argparse.Namespace) -> dict[str, float]:
    model = Path(arguments.model)
    manifest = Manifest.read(arguments.bundle)
    session = single(onnx.load(model, load_external_data=False), model.parent)
    return {str(at): seconds(steps_of(session, feeds(manifest, *at)), REPETITIONS[at]) for at in (DECODE, PREFILL)}


def measure_half(arguments: argparse.Namespace) -> dict[str, float]:
    """Both processes compute at the same time: they start each measurement together."""
    world, folder = mpi.start(), Path(arguments.bundle)
    manifest = Manifest.read(folder)
    session = single(alone(onnx.load(folder / manifest.ranks[world.rank].model, load_external_data=False)), folder)
    found = {}
    for at in (DECODE, PREFILL):
        local = {}
        for name, array in feeds(manifest, *at).items():
            place = manifest.inputs[name].placement
            local[name] = array if place is None else np.split(array, world.size, place.axis)[world.rank]
        world.comm.Barrier()
        found[str(at)] = max(world.exchange(seconds(steps_of(session, local), REPETITIONS[at])))
    return found


def measure_ranks(arguments: argparse.Namespace) -> dict[str, float]:
    runner = load(Path(arguments.bundle), timeout_s=60, load_timeout_s=600, prepack=False)
    found = {}
    for at in (DECODE, PREFILL):
        local = {name: runner.local(name, array) for name, array in feeds(runner.manifest, *at).items()}
        found[str(at)] = max(runner.world.exchange(seconds(lambda local=local: runner.step(local), REPETITIONS[at])))
    return found


def write_chain(folder: Path, size: int, collectives: bool) -> Path:
    """A bundle of CHAIN cheap nodes over `size` bytes, each followed by an AllReduce, or by nothing."""
    folder.mkdir()
    nodes, name, width = [], "x", size // 4
    for index in range(CHAIN):
        nodes.append(helper.make_node("Mul", [name, "half"], [f"m{index}"]))
        name = f"r{index}"
        options = {"nb_rank": RANKS, "reduce_op": "sum", "name": name}
        linked = make_collective("all_reduce", f"m{index}", name, **options)
        nodes.append(linked if collectives else helper.make_node("Identity", [f"m{index}"], [name]))
    doors = {"x": IOEntry("float32", (width,))}, {name: IOEntry("float32", (width,))}
    values = [[helper.make_tensor_value_info(key, 1, [width]) for key in side] for side in doors]
    half = onnx.numpy_helper.from_array(np.array(0.5, np.float32), "half")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("tpcompile", 1)]
    graph = helper.make_graph(nodes, "chain", *values, [half])
    text = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    (folder / "chain.onnx").write_bytes(text)
    (folder / "plan.toml").write_text("")
    ranks = tuple(RankEntry(r, r, 0, "chain.onnx", hashlib.sha256(text).hexdigest()) for r in range(RANKS))
    calls = tuple(
        CollectiveEntry(index, "all_reduce", f"m{index}", "float32", (), str(size), "the chain")
        for index in range(CHAIN if collectives else 0)
    )
    made = Manifest("0", SourceFile("chain", 0), Mesh(RANKS), ranks, doors[0], doors[1], "plan.toml", collectives=calls)
    made.write(folder)
    return folder


def measure_chain(arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds per collective: the chain with and without, and a bare MPI call on as many bytes, turn by turn."""
    world, found = mpi.start(), {}
    for label, size in SIZES.items():
        steps = []
        for kind in ("with", "without"):
            folder = Path(arguments.bundle) / f"{size}-{kind}"
            runner = load(folder, timeout_s=60, load_timeout_s=600, prepack=False, world=world)
            values = {"x": runner.local("x", np.ones(size // 4, np.float32))}
            steps.append(lambda runner=runner, values=values: runner.step(values))
        bare = np.ones(size // 4, np.float32)

        def plain(bare: Any = bare) -> None:
            for _ in range(CHAIN):
                world.comm.Allreduce(_in_place(), bare)
                bare *= 0.5  # so that the caches hold what they hold in the chain

        def halving(bare: Any = bare) -> None:
            for _ in range(CHAIN):
                bare *= 0.5

        repetitions = 200 if size < 1 << 16 else 40
        took = [seconds(step, repetitions, world.comm.Barrier) for step in (*steps, plain, halving)]
        found[f"{label} ours"] = (took[0] - took[1]) / CHAIN
        found[f"{label} bare"] = (took[2] - took[3]) / CHAIN
    return found


def _in_place() -> Any:
    from mpi4py import MPI

    return MPI.IN_PLACE


def products(width: int, count: int) -> onnx.ModelProto:
    """`count` products in a row with square weights of their own."""
    nodes, name = [], "x"
    weights = np.random.default_rng(1).standard_normal((width, width)).astype(np.float32) / np.float32(np.sqrt(width))
    stored = [onnx.numpy_helper.from_array(weights, f"w{index}") for index in range(count)]
    for index in range(count):
        nodes.append(helper.make_node("MatMul", [name, f"w{index}"], [f"m{index}"]))
        name = f"m{index}"
    return small_model(nodes, name, ["rows", width], stored)


def trifles(count: int) -> onnx.ModelProto:
    """`count` nodes with hardly anything to do, of kinds that are not joined."""
    nodes, name = [], "x"
    for index in range(count):
        nodes.append(helper.make_node(("Sin", "Exp", "Tanh")[index % 3], [name], [f"m{index}"]))
        name = f"m{index}"
    return small_model(nodes, name, ["rows", 8], [])


def small_model(nodes: list[Any], last: str, shape: list[Any], stored: list[Any]) -> onnx.ModelProto:
    """A model of one input x and one output, both of `shape`."""
    doors = [[helper.make_tensor_value_info(name, 1, shape)] for name in ("x", last)]
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(helper.make_graph(nodes, "parts", *doors, stored), opset_imports=opsets, ir_version=10)


def measure_parts(arguments: argparse.Namespace) -> dict[str, float]:
    """Bytes read, operations, and starts of nodes: each as the slowest process does it while all do."""
    world, found = mpi.start(), {}
    width, count, rows, nodes = 2048, 12, 128, 300
    tasks = {
        "bytes_per_us": (products(width, count), 1, 30, count * width * width * 4),
        "operations_per_us": (products(width, 2), rows, 10, 2 * 2 * rows * width * width),
        "nodes_per_us": (trifles(nodes), 1, 300, nodes),
    }
    for name, (model, height, repetitions, amount) in tasks.items():
        inner = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
        step = steps_of(single(model, ROOT), {"x": np.ones((height, inner), np.float32)})
        world.comm.Barrier()
        found[name] = amount / (max(world.exchange(seconds(step, repetitions))) * 1e6)
    return found


MEASURES: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "whole": measure_whole, "half": measure_half, "ranks": measure_ranks, "chain": measure_chain,
    "parts": measure_parts,
}  # fmt: skip


def measured(what: str, ranks: int, bundle: Path | None = None, model: Path | None = None) -> dict[str, float]:
    """Run one measurement in processes of its own."""
    words = [sys.executable, __file__, "--measure", what]
    for option, path in (("--bundle", bundle), ("--model", model)):
        words += [option, str(path)] if path else []
    command = mpirun_command(words, ranks)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"{what} failed:\n{done.stdout}{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """One measurement, as `measured` starts it; prints it as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", choices=MEASURES, required=True)
    parser.add_argument("--bundle")
    parser.add_argument("--model")
    arguments = parser.parse_args()
    found = MEASURES[arguments.measure](arguments)
    if mpi.start().rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
