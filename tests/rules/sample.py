"""A small graph on which a rule is proved: ONNX text, random values for it, and what the rule must claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """A graph around one operator.

    Attributes:
        op: the operator whose rule it proves, with its domain if that is not ai.onnx: "com.microsoft.QuickGelu".
        graph: ONNX text from the inputs on. What stands in <...> without values and is made by no node is a weight.
        free: the dims along which the first such node may be cut without any collective, as "x[2]": axis 2 of value x;
            "x[2].1" is the second factor or part of that axis. A dim that stands in several places has the name of the
            first, inputs before outputs.
        sums: the dims along which a cut leaves a partial sum. All other static dims must be whole.
        opset: of ai.onnx.
        values: the range [low, high) of random values by name; by default normal numbers of both signs, for integers of
            8 bits or less all there are, for others from 0 to 4. int8 keeps to 7 bits, [-64, 64): where a CPU has no
            VNNI, ONNX Runtime adds two products of uint8 and int8 in 16 bits, and 2 x 255 x 64 is as far as those go.
        sizes: what symbols stand for when the graph is run.
        note: tells samples of one operator apart.
    """

    op: str
    graph: str
    free: str = ""
    sums: str = ""
    note: str = ""
    opset: int = 23
    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=lambda: {"b": 2, "s": 3})

    def __str__(self) -> str:
        return f"{self.op} {self.note}".strip()

    @property
    def key(self) -> tuple[str, str]:
        """(domain, operator) as in the table of rules."""
        domain, _, op = self.op.rpartition(".")
        return domain, op

    def model(self) -> onnx.ModelProto:
        """The whole model, its weights drawn from a fixed seed."""
        domains = ", ".join([f'"" : {self.opset}'] + [f'"{d}" : 1' for d in (self.key[0],) if d])
        model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]> sample {self.graph}")
        made = {name for node in model.graph.node for name in node.output}
        for info in list(model.graph.value_info):
            if info.name not in made:
                model.graph.initializer.append(numpy_helper.from_array(self.draw(info), info.name))
                model.graph.value_info.remove(info)
        return model

    def static_model(self) -> onnx.ModelProto:
        """The model with numbers for symbols, so that those dims may be cut as well, and with weights as inputs."""
        model = self.model()
        for tensor in [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and t.dims]:
            model.graph.initializer.remove(tensor)
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.dims))
        for info in model.graph.input:
            for dim in info.type.tensor_type.shape.dim:
                if dim.HasField("dim_param"):
                    dim.dim_value = self.sizes[dim.dim_param]
        return model

    def feeds(self, model: onnx.ModelProto) -> dict[str, Array]:
        """Random inputs; symbols get the sample's sizes, which no analysis has seen."""
        return {info.name: self.draw(info) for info in model.graph.input}

    def draw(self, info: onnx.ValueInfoProto) -> Array:
        tensor = info.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else self.sizes[d.dim_param] for d in tensor.shape.dim]
        return drawn(info.name, tensor.elem_type, shape, self.values.get(info.name))


def drawn(name: str, elem_type: int, shape: list[int], between: tuple[float, float] | None = None) -> Array:
    """Random values that depend on the name and the shape alone."""
    random = np.random.default_rng([*name.encode(), *shape])
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    if elem_type == TensorProto.BOOL:
        return np.asarray(random.random(shape) < 0.5)
    if dtype.name.startswith(("int", "uint")):
        narrow = ml_dtypes.iinfo(dtype)
        everything = (-64, 64) if dtype == np.int8 else (narrow.min, narrow.max + 1)
        low, high = between or (everything if narrow.bits <= 8 else (0, 5))
        return random.integers(int(low), int(high), shape).astype(dtype)
    found = random.standard_normal(shape) if between is None else random.uniform(*between, shape)
    return np.asarray(found).astype(dtype)
