"""The small real exporter graphs of `tests/data`, their seeded weights and their sample inputs.

A graph lies there hollow: each large weight is a recipe instead of bytes, so a graph is tens of kilobytes. The recipe
stands in the tensor's `external_data` entries:

    location=seeded seed=S mean=M std=D transposed=0|1    floating point: M + D · standard normal, drawn by numpy's
                                                          default generator of seed S in float64, then cast
    location=seeded seed=S low=L high=H                   (u)int8: uniform integers from L to H, both included

`transposed=1` draws the transpose: exporters fold a tied weight into a transposed copy, and both hold equal numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx

Array = npt.NDArray[Any]

FOLDER = Path(__file__).parent / "data"
FLOATING: dict[int, Any] = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.FLOAT16: np.float16,
    onnx.TensorProto.DOUBLE: np.float64,
    onnx.TensorProto.BFLOAT16: ml_dtypes.bfloat16,
}
INTEGER: dict[int, Any] = {onnx.TensorProto.INT8: np.int8, onnx.TensorProto.UINT8: np.uint8}


def names(folder: Path = FOLDER) -> list[str]:
    """The graphs of `tests/data`, or of another folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.onnx"))


def model(name: str, folder: Path = FOLDER) -> onnx.ModelProto:
    """The graph `name` with every weight in `raw_data`, so that it can be saved and run."""
    hollow = onnx.load(folder / f"{name}.onnx", load_external_data=False)
    for tensor in hollow.graph.initializer:
        recipe = {entry.key: entry.value for entry in tensor.external_data}
        if recipe.get("location") == "seeded":
            tensor.raw_data = drawn(tensor, recipe).tobytes()
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.DEFAULT
    return hollow


def drawn(tensor: onnx.TensorProto, recipe: dict[str, str]) -> Array:
    """The numbers that `recipe` stands for, in the tensor's own shape and type."""
    generator = np.random.default_rng(int(recipe["seed"]))
    shape = tuple(tensor.dims)
    if tensor.data_type in INTEGER:
        low, high = int(recipe["low"]), int(recipe["high"])
        return generator.integers(low, high, size=shape, endpoint=True).astype(INTEGER[tensor.data_type])
    transposed = recipe["transposed"] == "1"
    noise = generator.standard_normal(shape[::-1] if transposed else shape)
    values: Array = float(recipe["mean"]) + float(recipe["std"]) * noise
    return (values.T if transposed else values).astype(FLOATING[tensor.data_type])


def feeds(name: str, folder: Path = FOLDER) -> dict[str, Array]:
    """The sample inputs of the graph `name`."""
    with np.load(folder / f"{name}.npz") as stored:
        return {key: stored[key] for key in stored.files if not key.startswith("out_")}


def save(name: str, path: Path) -> Path:
    """Write the filled graph `name` to `path` and return it."""
    onnx.save(model(name), path)
    return path
