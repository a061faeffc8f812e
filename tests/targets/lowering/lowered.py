"""Run a model before and after lowering, and let TensorRT build what came out of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from tests.rules.forced import run_whole
from tests.rules.sample import Array, Sample
from tpcompile.targets.lowering import Lowered, lower

BUILD = """
import json, sys
import tensorrt_rtx as trt
for path, sizes in json.loads(sys.stdin.read()):
    builder = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, builder.logger)
    if not parser.parse_from_file(path):
        print(json.dumps([path, [parser.get_error(i).desc() for i in range(parser.num_errors)], False]), flush=True)
        continue
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    for i in range(network.num_inputs):
        profile.set_shape(network.get_input(i).name, *[sizes[network.get_input(i).name]] * 3)
    config.add_optimization_profile(profile)
    made = builder.build_serialized_network(network, config)
    faults = [] if made is not None else ["the builder gives no engine"]
    print(json.dumps([path, faults, made is not None and b"_gemm_mha" in bytes(made)]), flush=True)
"""


def run(model: onnx.ModelProto, folder: Path, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of a model, computed in the graph's own order."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, dict(feeds))]


def lowered(sample: Sample, folder: Path) -> Lowered:
    """The sample's model lowered; its own operator must be gone from it."""
    found = lower(sample.model(), folder, "lowered.bin")
    assert not found.left, found.left
    assert found.changes.get(sample.key[1]), found.changes
    return found


def largest_error(before: Sequence[Array], after: Sequence[Array]) -> float:
    """The largest difference over the largest number of each output; shapes and types must be the same."""
    worst = 0.0
    for one, two in zip(before, after, strict=True):
        assert one.shape == two.shape, (one.shape, two.shape)
        assert one.dtype == two.dtype, (one.dtype, two.dtype)
        if one.size:
            a, b = one.astype(np.float64), two.astype(np.float64)
            assert np.isfinite(b).all() == np.isfinite(a).all()
            finite = np.isfinite(a)
            worst = max(
                worst, float(np.abs(a - b)[finite].max(initial=0) / max(np.abs(a[finite]).max(initial=0), 1e-6))
            )
    return worst


def error_of(sample: Sample, folder: Path) -> float:
    """How far the lowered model departs from the sample's."""
    model = sample.model()
    feeds = sample.feeds(model)
    return largest_error(run_whole(model, feeds), run(lowered(sample, folder).without_hints(), folder, feeds))


def build_faults(samples: Sequence[Sample], folder: Path) -> dict[str, list[str]]:
    """What TensorRT says of each lowered sample that it does not build, by sample; needs `tensorrt_rtx`."""
    return {name: faults for name, (faults, _) in _built(samples, folder).items() if faults}


def attends_in_one_kernel(sample: Sample, folder: Path) -> bool:
    """Whether TensorRT makes one kernel of a lowered sample's products and softmax; needs `tensorrt_rtx`."""
    return _built([sample], folder)[str(sample)][1]


def _built(samples: Sequence[Sample], folder: Path) -> dict[str, tuple[list[str], bool]]:
    """Faults, and whether the engine has a kernel for all of attention, by sample.

    All are built in one other process: a crash of the builder must not end the tests.
    """
    jobs, names = [], {}
    for number, sample in enumerate(samples):
        place = folder / str(number)
        place.mkdir()
        model = lowered(sample, place).model
        path = place / "lowered.onnx"
        onnx.save(model, path)
        shapes = {
            info.name: [dim.dim_value or sample.sizes[dim.dim_param] for dim in info.type.tensor_type.shape.dim]
            for info in model.graph.input
        }
        jobs.append((str(path), shapes))
        names[str(path)] = str(sample)
    done = subprocess.run(
        [sys.executable, "-c", BUILD], input=json.dumps(jobs), capture_output=True, text=True, timeout=300
    )
    found: dict[str, tuple[list[str], bool]] = {}
    for path, faults, fused in map(json.loads, filter(lambda line: line.startswith("["), done.stdout.splitlines())):
        found[names[path]] = faults, fused
    ended = [name for name in names.values() if name not in found]
    if ended:
        found[ended[0]] = [f"the builder ended with {done.returncode}: {done.stderr[-300:]}"], False
    return found
