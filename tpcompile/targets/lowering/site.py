"""One node while it is lowered: what may be asked of it, and how others are put in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tpcompile.graph.dtypes import numpy_dtype
from tpcompile.graph.names import fresh_name
from tpcompile.graph.tensors import ONNX_DTYPES, stored_bytes, type_name
from tpcompile.targets.lowering.registry import NotLowered
from tpcompile.targets.lowering.types import ValueTypes

Array = np.ndarray[Any, np.dtype[Any]]
INLINE_BYTES = 4096
"""Tensors of fewer bytes stand in the model itself, larger ones in the data file."""
ALIGNMENT = 4096


@dataclass
class Store:
    """Stored tensors of the model: those it came with, and those that lowering adds.

    Large new ones are appended to `folder / data_file`, which is made when the first of them comes.
    """

    folder: Path
    data_file: str
    tensors: dict[str, TensorProto]
    taken: set[str]
    added: list[TensorProto] = field(default_factory=list)
    _constants: dict[object, str] = field(default_factory=dict)

    def name(self, wanted: str) -> str:
        """`wanted`, or the first free `wanted.N`."""
        return fresh_name(wanted, self.taken)

    def array(self, name: str) -> Array:
        """The values of a stored tensor; mapped, not read, where they lie in a file and are of whole bytes."""
        tensor = self.tensors[name]
        if tensor.data_location != TensorProto.EXTERNAL:
            return numpy_helper.to_array(tensor)
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path, offset = self.folder / entries["location"], int(entries.get("offset", 0))
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        shape = tuple(tensor.dims)
        if "int4" in dtype.name or "int2" in dtype.name or "float4" in dtype.name or not np.prod(shape):
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(int(entries["length"]))
            return numpy_helper.to_array(TensorProto(dims=shape, data_type=tensor.data_type, raw_data=data))
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)

    def add(
        self, wanted: str, array: Array, *, packed_as: str | None = None, shape: Sequence[int] | None = None
    ) -> str:
        """Store a new tensor and give its name; equal small ones are shared.

        `packed_as`: `array` holds the packed bytes of a tensor of this type (such as "int4") and of `shape`.
        """
        array = np.ascontiguousarray(array).reshape(array.shape)
        key = (packed_as or array.dtype.name, tuple(shape or array.shape), array.tobytes())
        small = array.nbytes < INLINE_BYTES
        if small and key in self._constants:
            return self._constants[key]
        name = self.name(wanted)
        kind = ONNX_DTYPES[packed_as or array.dtype.name]
        tensor = TensorProto(name=name, data_type=kind, dims=tuple(array.shape if shape is None else shape))
        if small:
            tensor.raw_data = array.tobytes()
            self._constants[key] = name
        else:
            self._append(tensor, [array])
        self.tensors[name] = tensor
        self.added.append(tensor)
        return name

    def add_in_parts(self, wanted: str, dtype: str, shape: Sequence[int], parts: Iterable[Array]) -> str:
        """Store a new tensor whose bytes come in parts, one after the other; none is kept once it is written."""
        size = stored_bytes(ONNX_DTYPES[dtype], shape)
        tensor = TensorProto(name=self.name(wanted), data_type=ONNX_DTYPES[dtype], dims=tuple(shape))
        if size < INLINE_BYTES:
            tensor.raw_data = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
        else:
            self._append(tensor, parts)
        self.tensors[tensor.name] = tensor
        self.added.append(tensor)
        return tensor.name

    def view(self, name: str, dtype: str, shape: Sequence[int]) -> str:
        """The bytes of a stored tensor under another type and shape; nothing is copied where they lie in a file."""
        return self.made_once((name, dtype, tuple(shape)), lambda: self.view_as(self.name(name), name, dtype, shape))

    def view_as(self, own: str, name: str, dtype: str, shape: Sequence[int]) -> str:
        """As `view`, under the name `own`, which no tensor has."""
        source = self.tensors[name]
        tensor = TensorProto(name=own, data_type=ONNX_DTYPES[dtype], dims=tuple(shape))
        if source.data_location == TensorProto.EXTERNAL:
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.extend(source.external_data)
        else:
            tensor.raw_data = self.bytes_of(name).tobytes()
        self.tensors[own] = tensor
        self.added.append(tensor)
        return own

    def bytes_of(self, name: str) -> Array:
        """The bytes of a stored tensor, smaller elements packed; mapped, not read, where they lie in a file."""
        tensor = self.tensors[name]
        size = stored_bytes(tensor.data_type, tensor.dims)
        if tensor.data_location == TensorProto.EXTERNAL and size:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            path, offset = self.folder / entries["location"], int(entries.get("offset", 0))
            return np.memmap(path, dtype=np.uint8, mode="r", offset=offset, shape=(size,))
        data = tensor.raw_data or numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
        return np.frombuffer(data, np.uint8)

    def made_once(self, key: tuple[object, ...], make: Callable[[], str]) -> str:
        """The name of a tensor that is made when `key` is first asked for."""
        if key not in self._constants:
            self._constants[key] = make()
        return self._constants[key]

    def _append(self, tensor: TensorProto, parts: Iterable[Array]) -> None:
        with (self.folder / self.data_file).open("ab") as file:
            file.seek(0, 2)
            offset = -(-file.tell() // ALIGNMENT) * ALIGNMENT
            file.truncate(offset)
            file.seek(0, 2)
            for part in parts:
                file.write(np.ascontiguousarray(part).data)
            length = file.tell() - offset
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self.data_file), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))


Emission = tuple[str, str, tuple[str, ...], str, int]
"""What a node computes: operator, domain, operands, attributes, count of outputs."""
Emitted = dict[Emission, list[str]]


@dataclass
class Site:
    """A node that is being lowered. Nodes it emits come to stand in its place, in the order they were emitted.

    A node that was emitted in this graph before (`before`), or by this site, is not emitted again: layers share what is
    the same for all of them, such as masks and angles.
    """

    node: NodeProto
    opset: int
    types: ValueTypes
    store: Store
    read: frozenset[str]
    floats: frozenset[str] = frozenset()
    """Values of a narrow type that the lowered model holds as float32."""
    before: Emitted = field(default_factory=dict)
    emitted: list[NodeProto] = field(default_factory=list)
    fresh: Emitted = field(default_factory=dict)

    # -- what the node says ----------------------------------------

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value, text decoded."""
        for entry in self.node.attribute:
            if entry.name == name:
                value = helper.get_attribute_value(entry)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def has(self, index: int) -> bool:
        """Whether operand `index` is there."""
        return index < len(self.node.input) and bool(self.node.input[index])

    def input(self, index: int) -> str:
        """The name of operand `index`, which must be there."""
        if not self.has(index):
            raise NotLowered(f"operand {index} is absent")
        return str(self.node.input[index])

    def wants(self, index: int) -> bool:
        """Whether the node has output `index` and anything reads it."""
        return index < len(self.node.output) and self.node.output[index] in self.read

    def output(self, index: int) -> str:
        """The name of output `index`, "" where the node lacks it."""
        return self.node.output[index] if index < len(self.node.output) else ""

    # -- what is known of values -----------------------------------

    def dtype(self, name: str) -> str:
        """The element type of a value. Raises `NotLowered` where it is unknown."""
        stored = self.store.tensors.get(name)
        found = self.types.dtype(name) if stored is None else type_name(stored.data_type)
        if found is None:
            raise NotLowered(f"the type of '{name}' is unknown")
        return found

    def shape(self, name: str) -> tuple[int | None, ...]:
        """The sizes of a value, None for those that vary. Raises `NotLowered` where even the rank is unknown."""
        found = self.types.shape(name)
        if found is None:
            raise NotLowered(f"the shape of '{name}' is unknown")
        return found

    def rank(self, name: str) -> int:
        """How many axes a value has."""
        return len(self.shape(name))

    def size(self, name: str, axis: int) -> int:
        """A size that does not vary. Raises `NotLowered` for one that does."""
        found = self.shape(name)[axis]
        if found is None:
            raise NotLowered(f"axis {axis} of '{name}' varies")
        return found

    def same_length(self, x: str, axis: int, y: str, other: int, times: int = 1) -> bool:
        """Whether an axis of `x` is `times` as long as one of `y`, whatever the inputs; False where it is unknown."""
        one, two = self.types.lengths(x, axis), self.types.lengths(y, other)
        return one is not None and two is not None and one == tuple(times * length for length in two)

    def follows_shapes(self, name: str) -> bool:
        """Whether a value is computed from shapes alone, so that it may be the length of an axis."""
        return self.types.known(name)

    def is_stored(self, name: str) -> bool:
        """Whether a value is a stored tensor."""
        return name in self.store.tensors

    def stored(self, name: str) -> Array:
        """The values of a stored tensor (read-only). Raises `NotLowered` for a value that is computed."""
        if not self.is_stored(name):
            raise NotLowered(f"'{name}' is computed, not stored")
        return self.store.array(name)

    # -- what is put in its place ----------------------------------

    def emit(self, op: str, inputs: Sequence[str | None], *, domain: str = "", **attributes: Any) -> str:
        """A node of one output; the output's name."""
        return self.emit_several(op, inputs, 1, domain=domain, **attributes)[0]

    def emit_several(
        self, op: str, inputs: Sequence[str | None], count: int, *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """A node of `count` outputs; their names."""
        given = [name or "" for name in inputs]
        while given and not given[-1]:
            given.pop()
        known = {key: value for key, value in attributes.items() if value is not None}
        what = (op, domain, tuple(given), repr(sorted(known.items())), count)
        found = self.before.get(what) or self.fresh.get(what)
        if found is not None:
            return list(found)
        base = next(filter(None, self.node.output), self.node.name)
        outputs = [self.store.name(f"{base}.{op.lower()}") for _ in range(count)]
        self.fresh[what] = outputs
        self.emitted.append(helper.make_node(op, given, outputs, name=outputs[0], domain=domain, **known))
        return outputs

    def constant(self, value: Any, dtype: str) -> str:
        """A small stored tensor: a number, (nested) lists of numbers, or an array."""
        base = next(filter(None, self.node.output), self.node.name)
        return self.store.add(f"{base}.constant", np.asarray(value).astype(numpy_dtype(dtype)))

    def integers(self, *values: int) -> str:
        """A stored int64 list."""
        return self.constant(list(values), "int64")

    def scalar(self, value: float, like: str) -> str:
        """A stored number of the type of value `like`."""
        return self.constant(value, self.dtype(like))

    def cast(self, x: str, dtype: str) -> str:
        """`x` as another type."""
        return self.emit("Cast", [x], to=ONNX_DTYPES[dtype])

    def wide(self, x: str) -> str:
        """A value of the model in single precision at least."""
        return self.cast(x, "float32") if self.dtype(x) in ("float16", "bfloat16") else x

    def narrowed(self, x: str, like: str) -> str:
        """What was computed from `wide` values, as the type of value `like`."""
        return self.cast(x, self.dtype(like)) if self.dtype(like) in ("float16", "bfloat16") else x

    def reshape(self, x: str, *sizes: int) -> str:
        """`x` in another shape: 0 keeps a size, one -1 takes the rest."""
        return self.emit("Reshape", [x, self.integers(*sizes)])

    def transpose(self, x: str, *order: int) -> str:
        """`x` with its axes in another order."""
        return self.emit("Transpose", [x], perm=list(order))

    def unsqueeze(self, x: str, *axes: int) -> str:
        """`x` with new axes of size 1."""
        if self.opset < 13:
            return self.emit("Unsqueeze", [x], axes=list(axes))
        return self.emit("Unsqueeze", [x, self.integers(*axes)])

    def squeeze(self, x: str, *axes: int) -> str:
        """`x` without axes of size 1."""
        if self.opset < 13:
            return self.emit("Squeeze", [x], axes=list(axes))
        return self.emit("Squeeze", [x, self.integers(*axes)])

    def reduce(self, op: str, x: str, *axes: int, keepdims: bool = True) -> str:
        """ReduceSum, ReduceMean, ReduceMax… over axes."""
        if self.opset < (13 if op == "ReduceSum" else 18):
            return self.emit(op, [x], axes=list(axes), keepdims=int(keepdims))
        return self.emit(op, [x, self.integers(*axes)], keepdims=int(keepdims))

    def slice(self, x: str, axis: int, start: int | str, stop: int | str) -> str:
        """Indices start to stop of an axis; both may be values (int64 of one element)."""
        ends = [end if isinstance(end, str) else self.integers(end) for end in (start, stop)]
        return self.emit("Slice", [x, *ends, self.integers(axis)])

    def split(self, x: str, axis: int, sizes: Sequence[int]) -> list[str]:
        """Parts of an axis."""
        if self.opset < 13:
            return self.emit_several("Split", [x], len(sizes), axis=axis, split=list(sizes))
        return self.emit_several("Split", [x, self.integers(*sizes)], len(sizes), axis=axis)

    def length(self, x: str, axis: int) -> str:
        """The size of an axis at run time, int64 of one element; asked of an input where it is one of its lengths."""
        x, axis = self.types.origin(x, axis)
        return self.emit("Gather", [self.emit("Shape", [x]), self.integers(axis)], axis=0)


def copy_without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of the same graph, its initializers left out."""
    made = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    made.graph.name = model.graph.name
    made.graph.input.extend(model.graph.input)
    made.graph.output.extend(model.graph.output)
    made.graph.value_info.extend(model.graph.value_info)
    made.graph.node.extend(model.graph.node)
    made.graph.metadata_props.extend(model.graph.metadata_props)
    made.metadata_props.extend(model.metadata_props)
    return made
