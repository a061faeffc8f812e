"""One rank's exported program: torch's own graph, with local tensors and sizes, and collectives between ranks."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputSpec, TensorArgument

from tpcompile.dims.dim import Dim
from tpcompile.graph.dtypes import numpy_dtype
from tpcompile.graph.local import COLLECTIVE, LocalNode, LocalProgram, LocalWeight, PerRank
from tpcompile.graph.program import Program
from tpcompile.torch import collectives as _collectives  # noqa: F401 - registers the operators
from tpcompile.torch import cross_entropy as _cross_entropy  # noqa: F401 - likewise
from tpcompile.torch.call import Call, append, fake_mode_of
from tpcompile.torch.capture import Captured
from tpcompile.torch.made import MADE, Content
from tpcompile.weights.ranges import Part, is_whole, local_shape, take

own = torch.ops.tpcompile
COLLECTIVES = {
    "all_reduce": own.all_reduce.default,
    "all_gather": own.all_gather.default,
    "broadcast": own.broadcast.default,
    "copy": own.copy.default,
}
LIKE_THEIR_OPERAND = frozenset((*(COLLECTIVES[op] for op in ("all_reduce", "broadcast", "copy")), own.once.default))
"""Operators that give a tensor of their operand's shape and type."""


@dataclass
class RankWriter:
    """Writes the program of one rank.

    Args:
        captured: the model as it came in.
        program: its neutral graph.
        local: the program of all ranks.
        rank: which one.
        axes: the dims of each value by its name.
        trains: whether gradients are right; else they are refused.
        alike: what stands for values of one shape and type: torch takes long to make it, layers and ranks share it.
    """

    captured: Captured
    program: Program
    local: LocalProgram
    rank: int
    axes: Mapping[str, Sequence[Dim]]
    trains: bool
    alike: dict[Any, torch.Tensor]
    found: dict[str, Any] = field(default_factory=dict)

    def write(self) -> torch.export.ExportedProgram:
        """The rank's program; its state dict holds tensors of the rank's own, not yet read (meta tensors)."""
        source = self.captured.program
        self.graph = torch.fx.Graph()
        self.fakes = fake_mode_of(source.graph)
        self.contents = {constant.name: constant for constant in self.local.constants}
        self.specs: list[InputSpec] = []
        self.state: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}
        self.tensors: dict[int, torch.fx.Node] = {}
        self._weights()
        inputs = self._inputs(source)
        for node in self.local.nodes:
            self._node(node)
        self._output(source)
        signature = ExportGraphSignature([*self.specs, *inputs], self._output_specs(source))
        module = torch.fx.GraphModule(torch.nn.Module(), self.graph)
        made = torch.export.ExportedProgram(
            root=module,
            graph=self.graph,
            graph_signature=signature,
            state_dict=self.state,
            range_constraints=dict(source.range_constraints),
            module_call_graph=copy.copy(source.module_call_graph[:1]),
            example_inputs=None,
            constants=self.constants,
            verifiers=source.verifiers,
        )
        return made

    # -- what comes in -----------------------------------------------

    def _weights(self) -> None:
        kinds = {spec.target: spec for spec in self.captured.program.graph_signature.input_specs if spec.target}
        for weight in self.local.weights:
            spec = kinds[weight.weight.name]
            fake = self._local_fake(weight, spec)
            self._placeholder(weight.name, stored_name(weight), spec.kind, spec.persistent, fake)

    def _local_fake(self, weight: LocalWeight, spec: InputSpec) -> torch.Tensor:
        part = weight.parts[self.rank]
        shape = local_shape(weight.weight.shape, part)
        dtype = getattr(torch, weight.weight.dtype)
        with self.fakes:
            made = torch.empty(shape, dtype=dtype)
        if spec.kind == InputKind.PARAMETER:
            made = torch.nn.Parameter(made, requires_grad=self.trains and weight.weight.trained)
        return made

    def _placeholder(self, name: str, target: str, kind: InputKind, persistent: bool | None, fake: Any) -> None:
        prefix = {InputKind.PARAMETER: "p", InputKind.BUFFER: "b"}.get(kind, "c")
        node = self.graph.placeholder(f"{prefix}_{target.replace('.', '_')}")
        node.meta["val"] = fake
        self.found[name] = node
        self.specs.append(InputSpec(kind, TensorArgument(name=node.name), target, persistent))
        if kind == InputKind.CONSTANT_TENSOR or (kind == InputKind.BUFFER and persistent is False):
            self.constants[target] = fake
        else:
            self.state[target] = fake

    def _inputs(self, source: torch.export.ExportedProgram) -> list[InputSpec]:
        specs = []
        given = {spec.arg.name: spec for spec in source.graph_signature.input_specs}
        for node in source.graph.nodes:
            spec = given.get(node.name)
            if node.op != "placeholder" or spec is None or spec.kind != InputKind.USER_INPUT:
                continue
            made = self.graph.placeholder(node.name)
            made.meta = dict(node.meta)
            place = self.local.doors.get(node.name)
            if place is not None:
                made.meta["val"] = self._cut_fake(node.meta["val"], place.axis, place.ranges[self.rank])
            self.found[node.name] = made
            specs.append(InputSpec(spec.kind, copy.copy(spec.arg), None))
            specs[-1].arg.name = made.name
        return specs

    def _cut_fake(self, value: torch.Tensor, axis: int, ranges: Any) -> torch.Tensor:
        shape = list(value.shape)
        shape[axis] = sum(stop - start for start, stop in ranges)
        with self.fakes:
            return torch.empty(shape, dtype=value.dtype, device=value.device)

    # -- nodes -------------------------------------------------------

    def _node(self, node: LocalNode) -> None:
        attributes = {
            name: value.values[self.rank] if isinstance(value, PerRank) else value
            for name, value in node.attributes.items()
        }
        operands = [self._entry(name) for name in node.inputs]
        if node.op == COLLECTIVE:
            made: Any = self._collective(node, attributes, operands)
        elif isinstance(node.origin, list):
            made = Call(list, {"0": node.origin}).filled(operands, {})[0][0]
        elif isinstance(node.origin, Call):
            metas = [self._meta(name) for name in node.outputs]
            tensors = node.origin.tensors
            plain = [self._argument(entry, k in tensors) for k, entry in enumerate(operands)]
            made = self._source(node.origin, plain, attributes, metas)
        else:
            made = MADE[node.op](self, operands, attributes)
        if _is_sequence(made):
            for k, name in enumerate(node.outputs):
                if name:
                    self.found[name] = self.call(operator.getitem, made, k)
        else:
            self.found[node.outputs[0]] = made

    def _entry(self, name: str) -> Any:
        if not name:
            return None
        if name not in self.found:
            self.found[name] = Content(self.contents[name].arrays[self.rank])
        return self.found[name]

    def _argument(self, entry: Any, tensor: bool) -> Any:
        """A constant as calls of the source take it: where a tensor is taken, a number is as good."""
        if not isinstance(entry, Content):
            return entry
        return self.tensor(entry) if tensor and entry.array.ndim else entry.plain

    def _source(self, call: Call, operands: list[Any], attributes: Mapping[str, Any], metas: list[Any]) -> Any:
        args, kwargs = call.filled(operands, attributes)
        if any(meta is None for meta in metas):
            return self.call(call.target, *args, **kwargs)
        node = self.graph.call_function(call.target, args, kwargs)
        returns = getattr(call.target, "_schema", None)
        several = len(metas) > 1 or (returns is not None and str(returns.returns[0].type) == "List[Tensor]")
        node.meta["val"] = tuple(metas) if several else metas[0]
        return node

    def _meta(self, name: str) -> torch.Tensor | None:
        """A version of one of the source's values as this rank has it: no operator is asked for its shape."""
        if name not in self.local.layouts:
            return None
        value, cut = self.local.layouts[name]
        source = self.program.origin.get(value.name)
        if source is None or value.name not in self.axes:
            return None
        shape = []
        for size, dim in zip(source.shape, self.axes[value.name], strict=True):
            local, whole = cut.ratio(dim, self.rank)
            shape.append(size if local == whole else size * local // whole)
        key = (tuple(map(_spelled, shape)), source.dtype, source.device)
        if key not in self.alike:
            with self.fakes:
                self.alike[key] = torch.empty(shape, dtype=source.dtype, device=source.device)
        return self.alike[key]

    def _collective(self, node: LocalNode, attributes: Mapping[str, Any], operands: list[Any]) -> Any:
        op = attributes["collective_operation"]
        group = attributes["groups"] or range(self.local.ranks)
        label = ",".join(map(str, group))
        if op == "cross_entropy":
            names = ("start", "classes", "reduction", "ignore_index", "label_smoothing")
            x, target = map(self.tensor, operands)
            both = self.call(own.cross_entropy.default, x, target, label, *(attributes[name] for name in names))
            return self.call(operator.getitem, both, 0)
        more: list[Any] = [attributes["root"]] if op == "broadcast" else []
        if op == "all_reduce" and attributes["reduce_op"] != "sum":
            more = [attributes["reduce_op"]]
        runs_only = {} if self.trains or op not in ("all_reduce", "all_gather") else {"trains": False}
        sent = self.tensor(operands[0])
        pairs = sent.meta["val"].is_complex() and op != "copy"  # a copy is sent backward alone, and sees to it
        if pairs:
            sent = self.call(torch.ops.aten.view_as_real.default, self.call(torch.ops.aten.resolve_conj.default, sent))
        found = self.call(COLLECTIVES[op], sent, label, *more, **runs_only)
        return self.call(torch.ops.aten.view_as_complex.default, found) if pairs else found

    # -- for `made` --------------------------------------------------

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """Append a call, with what it makes as its meta value; calls on plain numbers are made at once."""
        if not any(isinstance(each, torch.fx.Node) for each in _flat((args, kwargs))) and _is_arithmetic(target):
            return target(*args, **kwargs)
        if target in LIKE_THEIR_OPERAND:
            node = self.graph.call_function(target, args, kwargs)
            node.meta["val"] = args[0].meta["val"]
            return node
        return append(self.graph, self.fakes, target, args, kwargs)

    def tensor(self, entry: Any) -> Any:
        """An entry as a tensor: a constant becomes one that the program holds."""
        if isinstance(entry, torch.fx.Node):
            return entry
        if not isinstance(entry, Content):
            raise TypeError(f"{entry!r} is no tensor")
        key = id(entry.array)
        if key not in self.tensors:
            with self.graph.inserting_before(self._first()):
                node = self.graph.placeholder(f"c_tpcompile_{len(self.tensors)}")
            array = np.ascontiguousarray(entry.array)
            value = torch.from_numpy(array.copy()) if array.dtype.kind in "biuf" else None
            if value is None:
                raise TypeError(f"a constant of type {array.dtype}")
            node.meta["val"] = self.fakes.from_tensor(value, static_shapes=True)
            target = f"tpcompile_constant_{len(self.tensors)}"
            self.constants[target] = value
            self.specs.append(InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name=node.name), target))
            self.tensors[key] = node
        return self.tensors[key]

    def _first(self) -> Any:
        """The first node behind the stored tensors: the signature lists these in the order of placeholders."""
        last = self.specs[-1].arg.name if self.specs else None
        nodes = iter(self.graph.nodes)
        for node in nodes:
            if node.name == last:
                return next(nodes)
        return next(iter(self.graph.nodes))

    # -- what goes out -----------------------------------------------

    def _output(self, source: torch.export.ExportedProgram) -> None:
        last = next(node for node in reversed(source.graph.nodes) if node.op == "output")
        names = iter([value.name for value in self.program.outputs])

        def end(node: torch.fx.Node) -> Any:
            entry = self._entry(next(names))
            return (
                self._argument(entry, False)
                if isinstance(node.meta.get("val"), int | torch.SymInt)
                else self.tensor(entry)
            )

        self.ends = torch.fx.node.map_arg(last.args[0], end)
        made = self.graph.output(self.ends)
        made.meta = {"val": tuple(n.meta["val"] if isinstance(n, torch.fx.Node) else n for n in self.ends)}

    def _output_specs(self, source: torch.export.ExportedProgram) -> list[OutputSpec]:
        found = []
        for spec, end in zip(source.graph_signature.output_specs, self.ends, strict=True):
            arg = copy.copy(spec.arg)
            if isinstance(end, torch.fx.Node):
                arg = TensorArgument(name=end.name)
            found.append(OutputSpec(spec.kind, arg, spec.target))
        return found


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [each for part in value.values() for each in _flat(part)]
    if isinstance(value, list | tuple):
        return [each for part in value for each in _flat(part)]
    return [value]


def _spelled(size: int | torch.SymInt) -> Any:
    return size if isinstance(size, int) else size.node.expr


def _is_sequence(made: Any) -> bool:
    return isinstance(made, torch.fx.Node) and isinstance(made.meta.get("val"), tuple | list)


def _is_arithmetic(target: Any) -> bool:
    return not isinstance(target, torch._ops.OpOverload)


def stored_name(weight: LocalWeight) -> str:
    """Under which name a rank's program holds a tensor: the source's, but for a second version of one."""
    return weight.name if weight.name == weight.weight.name else "tpcompile_" + weight.name.replace(".", "_")


def local_tensor(weight: LocalWeight, rank: int) -> torch.Tensor:
    """What a rank holds of a stored tensor, read from its source."""
    shape, part = weight.weight.shape, weight.parts[rank]
    if rank in weight.zeroed:
        return torch.zeros(local_shape(shape, part), dtype=getattr(torch, weight.weight.dtype))
    dtype = numpy_dtype(weight.weight.dtype)
    data = np.frombuffer(_read(weight), np.uint8).reshape(*shape, dtype.itemsize)
    held = data if is_whole(shape, part) else take(data, Part((*part.axes, None)))
    found = torch.from_numpy(np.ascontiguousarray(held).copy().reshape(-1))
    local = held.shape[:-1]
    return found.view(getattr(torch, weight.weight.dtype)).reshape(local)


def _read(weight: LocalWeight) -> Any:
    source = weight.weight.source
    path = getattr(source, "path", None)
    if path is None:
        return source.data
    return np.memmap(path, np.uint8, "r", source.offset, (source.nbytes,))
