#!/usr/bin/env python3
"""Give `minilm.graph.onnx` its weights: python examples/minilm/fill_graph.py MODEL.safetensors FOLDER

Writes FOLDER/minilm.onnx and, beside it, FOLDER/model.safetensors. A safetensors file is a header and then plain bytes,
and an ONNX tensor may say "my bytes lie in that file, from here, so many": so nothing is converted, each weight of the
graph is only told where its bytes are.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import onnx

GRAPH = Path(__file__).parent / "minilm.graph.onnx"
DTYPES = {onnx.TensorProto.FLOAT: ("F32", 4), onnx.TensorProto.INT64: ("I64", 8)}


def fill(safetensors: Path, folder: Path) -> Path:
    """Write the model to `folder` and return the path of its graph.

    Raises SystemExit where a weight of the graph is missing in `safetensors` or has another type or shape there.
    """
    header, data_start = read_header(safetensors)
    model = onnx.load(GRAPH, load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        dtype, item_bytes = DTYPES[tensor.data_type]
        stored = header.get(tensor.name)
        if stored is None or (stored["dtype"], stored["shape"]) != (dtype, list(tensor.dims)):
            raise SystemExit(f"{safetensors}: {tensor.name} should be {dtype}{list(tensor.dims)} and is {stored}")
        first, end = stored["data_offsets"]
        if end - first != item_bytes * math.prod(tensor.dims):
            raise SystemExit(f"{safetensors}: {tensor.name} has {end - first} bytes")
        del tensor.external_data[:]
        for key, text in (("location", "model.safetensors"), ("offset", data_start + first), ("length", end - first)):
            tensor.external_data.add(key=key, value=str(text))
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(safetensors, folder / "model.safetensors")
    onnx.save(model, folder / "minilm.onnx")
    return folder / "minilm.onnx"


def read_header(safetensors: Path) -> tuple[dict[str, Any], int]:
    """What a safetensors file says of its tensors, and the offset at which their bytes begin."""
    with safetensors.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size)), 8 + size


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    print(fill(Path(sys.argv[1]), Path(sys.argv[2])))
