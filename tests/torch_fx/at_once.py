"""Run the programs of all ranks while they are written, node by node, in one thread and one graph of gradients.

Writing and running are the same walk then, no operator is asked for the shapes of tensors that are not there, and no
rank waits: a hundredth of the time, for tests that cut one program a hundred times. What an operator of tpcompile does
to values and gradients is what its documentation says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tpcompile.torch.call import Call
from tpcompile.torch.made import Content
from tpcompile.torch.programs import Parallelized
from tpcompile.torch.to_aten import COLLECTIVES, RankWriter, local_tensor

Tensors = list[Any]
MEETINGS = frozenset(COLLECTIVES.values())


class Held(torch.fx.Node):
    """What stands for a value in the place of a graph's node, at a tenth of the cost."""

    def __init__(self, value: Any) -> None:
        self.meta = {"val": value}

    def __repr__(self) -> str:
        return f"Held({self.meta['val']!r})"


class AtOnce(RankWriter):
    """One rank; `weights` are its own parts of what is trained, `meets` the collective it waits in."""

    def __init__(self, parallel: Parallelized, rank: int, given: Mapping[str, Any]) -> None:
        work = parallel.work
        axes = {value.name: dims for value, dims in work.analysis.axes.items() if dims is not None}
        super().__init__(work.source, work.program, work.local, rank, axes, True, {})
        self.contents = {constant.name: constant for constant in self.local.constants}
        self.tensors = {}
        self.weights: dict[str, Any] = {}
        self.meets: tuple[Any, Tensors, torch.fx.Node] | None = None
        for weight in self.local.weights:
            tensor = local_tensor(weight, rank)
            if weight.weight.trained:
                tensor = self.weights[weight.name] = torch.nn.Parameter(tensor)
            self._given(weight.name, tensor)
        for value, tensor in zip(self.program.inputs, given.values(), strict=True):
            self._given(value.name, tensor)

    def outputs(self) -> Tensors:
        return [self.tensor(self._entry(value.name)).meta["val"] for value in self.program.outputs]

    def tensor(self, entry: Any) -> Any:
        if isinstance(entry, Content):
            return Held(torch.from_numpy(entry.array.copy()))
        return super().tensor(entry)

    def _given(self, name: str, tensor: Any) -> None:
        self.found[name] = Held(tensor)

    def _source(self, call: Call, operands: list[Any], attributes: Mapping[str, Any], metas: list[Any]) -> Any:
        found = super()._source(call, operands, attributes, [None])
        made = found.meta["val"] if isinstance(found, Held) else ()
        for told, tensor in zip(metas, made if isinstance(made, tuple | list) else [made], strict=False):
            assert told is None or fits(told, tensor), f"{call.target} gives {list(tensor.shape)} instead of {told}"
        return found

    def _meta(self, name: str) -> Any:
        """The shape that a program is told its node has, None for what is dynamic."""
        if name not in self.local.layouts or self.local.layouts[name][0].name not in self.axes:
            return None
        value, cut = self.local.layouts[name]
        return [cut.local_size(dim, self.rank) if dim.static else None for dim in self.axes[value.name]]

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        values: Any = torch.fx.node.map_arg((args, kwargs), lambda node: node.meta["val"])
        meets = target in MEETINGS
        made = None if meets else target(*values[0], **values[1])
        if not meets and not isinstance(made, torch.Tensor | tuple | list):
            return made
        node = Held(made)
        if meets:
            self.meets = (target, values[0], node)
        return node


def fits(told: Sequence[int | None], tensor: Any) -> bool:
    """Whether a tensor has the shape it is said to have."""
    return len(told) == tensor.dim() and all(a in (None, b) for a, b in zip(told, tensor.shape, strict=True))


def run(
    parallel: Parallelized, given: Sequence[Mapping[str, Any]], counts: Counter[str] | None = None
) -> list[tuple[Tensors, dict[str, Any]]]:
    """The outputs and the trained weights of every rank, for each rank's inputs; collectives of rank 0 are counted."""
    ranks = [AtOnce(parallel, rank, feeds) for rank, feeds in enumerate(given)]
    for node in parallel.work.local.nodes:
        for writer in ranks:
            try:
                writer._node(node)
            except Exception as error:
                error.add_note(f"at {node.op} {node.name}")
                raise
        if ranks[0].meets is not None:
            op, (_, _, *more), _ = ranks[0].meets
            if counts is not None:
                name = str(op).split(".")[1]
                counts[f"{name} {more[0] if more else 'sum'}" if name == "all_reduce" else name] += 1
            _meet(ranks)
    return [(writer.outputs(), writer.weights) for writer in ranks]


def _meet(ranks: Sequence[AtOnce]) -> None:
    """Give each rank what its collective makes of what its group brings."""
    calls = [writer.meets for writer in ranks]
    assert len({str(call[0]) for call in calls if call is not None}) == 1
    labels = [call[1][1] for call in calls if call is not None]
    for label in dict.fromkeys(labels):
        group = [int(rank) for rank in label.split(",")]
        members = [call for rank in group if (call := calls[rank]) is not None]
        target, (_, _, *more), _ = members[0]
        found = _exchanged(str(target).split(".")[1], [call[1][0] for call in members], group, more)
        for call, tensor in zip(members, found, strict=True):
            call[2].meta["val"] = tensor
    for writer in ranks:
        writer.meets = None


def _exchanged(op: str, tensors: Tensors, group: Sequence[int], more: Sequence[Any]) -> Sequence[Any]:
    if op == "broadcast":
        return [tensors[group.index(more[0])].detach().clone() for _ in tensors]
    if op == "all_reduce" and more and more[0] != "sum":
        return [torch.stack(tensors).amax(0).detach().clone() for _ in tensors]
    kinds: dict[str, Any] = {"all_reduce": Sum, "copy": Copy, "all_gather": Gather}
    found: Sequence[Any] = kinds[op].apply(*tensors)
    return found


class Sum(torch.autograd.Function):
    """Every rank has the sum; its gradient is that of every part."""

    @staticmethod
    def forward(ctx: Any, *parts: Any) -> Any:
        total = sum(parts[1:], parts[0])
        return tuple(total.clone() for _ in parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients


class Copy(torch.autograd.Function):
    """Every rank has its value; the gradient of each is the sum of all."""

    @staticmethod
    def forward(ctx: Any, *values: Any) -> Any:
        return tuple(value.clone() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return tuple(sum(gradients[1:], gradients[0]) for _ in gradients)


class Gather(torch.autograd.Function):
    """Every rank has all parts; each takes its own of the gradient."""

    @staticmethod
    def forward(ctx: Any, *parts: Any) -> Any:
        whole = torch.cat(parts)
        return tuple(whole.clone() for _ in parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        rows = gradients[0].shape[0] // len(gradients)
        return tuple(gradient[k * rows : (k + 1) * rows] for k, gradient in enumerate(gradients))
