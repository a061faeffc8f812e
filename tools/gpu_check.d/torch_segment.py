"""A segment of a rank's graph, run node by node in torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor
from torch_ops import OPERATORS, TYPES, Call, together

from tpcompile.errors import refuse

HOST_ELEMENTS = 64
"""Stored integers up to this many stay on the host: they are sizes and axes."""
SIGNED_OF = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def from_bits(array: np.ndarray, kind: int) -> Tensor:
    """A tensor of ONNX type `kind` from an array of that type, numpy's own or not; its memory is copied."""
    bits = torch.from_numpy(np.ascontiguousarray(array).view(np.dtype(f"i{array.itemsize}")).copy())
    return bits.view(TYPES[kind]).reshape(array.shape)


class Weights:
    """Stored tensors of the rank files in `folder`, each read and put on `device` once."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder, self.device = folder, device
        self._held: dict[str, Tensor] = {}

    def get(self, tensor: onnx.TensorProto) -> Tensor:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return self._placed(onnx.numpy_helper.to_array(tensor), tensor.data_type)
        if tensor.name not in self._held:
            place = {entry.key: entry.value for entry in tensor.external_data}
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            shape, offset = tuple(tensor.dims), int(place.get("offset", 0))
            found = np.fromfile(self.folder / place["location"], dtype, math.prod(shape), offset=offset)
            self._held[tensor.name] = self._placed(found.reshape(shape), tensor.data_type)
        return self._held[tensor.name]

    def _placed(self, array: np.ndarray, kind: int) -> Tensor:
        made = from_bits(array, kind)
        on_host = not made.is_floating_point() and made.numel() <= HOST_ELEMENTS
        return made if on_host else made.to(self.device)


class TorchSegment:
    """A segment ready to run on tensors; `made` as `Loaded` has it.

    Raises:
        Refused: TP606 an operator that there is no torch call for.
    """

    def __init__(self, part: onnx.ModelProto, outputs: tuple[str, ...], weights: Weights) -> None:
        graph = part.graph
        self.outputs, self.weights = outputs, weights
        self.opset = next(entry.version for entry in part.opset_import if entry.domain in ("", "ai.onnx"))
        lacking = sorted({f"{node.domain}.{node.op_type}".lstrip(".") for node in graph.node} - OPERATORS.keys())
        lacking = [name for name in lacking if name != "Constant"]
        if lacking:
            raise refuse("TP606", "torch", f"there is no torch call for {', '.join(lacking)}", "Use another backend")
        self.fixed = {tensor.name: weights.get(tensor) for tensor in graph.initializer}
        self.nodes = [(node, {a.name: self._attribute(a) for a in node.attribute}) for node in graph.node]
        inferred = onnx.shape_inference.infer_shapes(part).graph
        kinds = {value.name: value.type.tensor_type.elem_type for value in (*inferred.value_info, *inferred.output)}
        kinds |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
        kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        self.made = [(name, kinds[name], ()) for name in outputs]
        last: dict[str, int] = {}
        for index, (node, _) in enumerate(self.nodes):
            last.update(dict.fromkeys(node.input, index))
        self.released = [
            [name for name in dict.fromkeys(node.input) if last[name] == index and name not in outputs]
            for index, (node, _) in enumerate(self.nodes)
        ]

    def _attribute(self, attribute: onnx.AttributeProto) -> Any:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            return self.weights.get(value)
        return value.decode() if isinstance(value, bytes) else value

    def run(self, given: Mapping[str, Tensor]) -> list[Tensor]:
        """The outputs, in order, for tensors by name: each in memory of its own, which collectives may work in."""
        values = self.fixed | dict(given)
        for (node, attributes), released in zip(self.nodes, self.released, strict=True):
            if node.op_type == "Constant":
                values[node.output[0]] = next(_constant(value) for value in attributes.values())
                continue
            inputs = together(node.op_type, [values[name] if name else None for name in node.input])
            found = OPERATORS[node.op_type](Call(node.op_type, inputs, attributes, self.opset, len(node.output)))
            made = found if isinstance(found, tuple) else (found,)
            values.update((name, tensor) for name, tensor in zip(node.output, made, strict=False) if name)
            for name in released:
                values.pop(name, None)
        return list(_own([values[name] for name in self.outputs], [*self.fixed.values(), *given.values()]))


def _own(found: list[Tensor], others: list[Tensor]) -> Iterator[Tensor]:
    """The tensors found, copied where they lie in memory of others or of each other, or have gaps."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in others}
    for tensor in found:
        held = tensor.contiguous()
        held = held.clone() if held.untyped_storage().data_ptr() in taken else held
        taken.add(held.untyped_storage().data_ptr())
        yield held


def _constant(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.tensor(value, dtype=torch.float32 if isinstance(np.ravel(value)[0], float) else torch.int64)
