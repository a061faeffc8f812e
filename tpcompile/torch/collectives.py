"""The operators `torch.ops.tpcompile.*` of rank programs: collectives, with their conjugates as gradients.

torch's functional collectives have no gradients of their own. All ranks compute the same loss, so the gradient of a
value that all hold whole is the same on all of them: through a sum it passes as it is, through a gather each rank takes
its own part, and where all ranks use a whole value for their own parts, it is the sum of what they send back.

A `group` is a label ("0,1,2,3", tensor-parallel ranks); `tpcompile.torch.groups.use` says which processes these are.
Without it the operators still have shapes, under FakeTensorMode and for tracing. Importing this module registers them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tpcompile.errors import refuse
from tpcompile.torch import groups

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class Sent:
    """A collective that ran: its operator, the bytes of its result on this rank, and "forward" or "backward"."""

    op: str
    nbytes: int
    phase: str
    group: str


_counters: list[list[Sent]] = []


@contextmanager
def counted() -> Iterator[list[Sent]]:
    """A list that collectives of this process are added to as they run; groups of one rank send nothing."""
    counter: list[Sent] = []
    _counters.append(counter)
    try:
        yield counter
    finally:
        _counters[:] = [other for other in _counters if other is not counter]


def _count(op: str, result: Tensor, group: str) -> None:
    if _counters:
        # Compiled backward graphs run within autograd's engine as well; it alone has a task to name.
        phase = FORWARD if torch._C._current_graph_task_id() == -1 else BACKWARD
        for counter in _counters:
            counter.append(Sent(op, result.numel() * result.element_size(), phase, group))


def _wait(pending: Tensor) -> Tensor:
    done: Tensor = torch.ops._c10d_functional.wait_tensor(pending)
    return done


def _as_sent(x: Tensor) -> Tensor:
    """`x` in the form in which it travels: booleans as bytes, which gloo and nccl know."""
    return x.contiguous().view(torch.uint8) if x.dtype == torch.bool else x.contiguous()


@torch.library.custom_op("tpcompile::all_reduce", mutates_args=())
def all_reduce(x: Tensor, group: str, reduce: str = "sum", trains: bool = True) -> Tensor:
    """The sum or maximum ("sum", "max") of every rank's `x`, on every rank; all have one shape and type.

    The gradient of a sum is handed on as it is; in a program that does not train (without `trains`) it is refused, as
    gradients would lack the sums over ranks. A maximum has none: it serves to keep exponentials small, and there its
    gradient cancels out.

    Raises:
        Refused: TP750, TP751 the group is unknown; TP753 the type cannot be reduced so.
    """
    if reduce not in ("sum", "max") or (x.dtype == torch.bool and reduce == "sum") or x.dtype.is_complex:
        fact = f"there is no {reduce} of {str(x.dtype).removeprefix('torch.')} over ranks"
        raise refuse("TP753", "tpcompile::all_reduce", fact, 'Reduce real numbers by "sum" or "max", booleans by "max"')
    process_group = groups.group_of(group)
    if process_group.size() == 1:
        return x.clone(memory_format=torch.contiguous_format)
    reduced = _wait(torch.ops._c10d_functional.all_reduce(_as_sent(x), reduce, process_group.group_name)).view(x.dtype)
    _count("all_reduce", reduced, group)
    return reduced


@torch.library.custom_op("tpcompile::copy", mutates_args=())
def copy(x: Tensor, group: str) -> Tensor:
    """`x`, which every rank of the group has alike and uses for its own part: the gradient is the sum of theirs."""
    return x.clone()


@torch.library.custom_op("tpcompile::all_gather", mutates_args=())
def all_gather(x: Tensor, group: str, trains: bool = True) -> Tensor:
    """Every rank's `x`, of one shape and type, one after the other along dimension 0 in the order of the group.

    The gradient is this rank's part of that of the result, which every rank has whole; `trains` as in `all_reduce`.

    Raises:
        Refused: TP750, TP751 the group is unknown.
    """
    process_group = groups.group_of(group)
    if process_group.size() == 1:
        return x.clone(memory_format=torch.contiguous_format)
    gather = torch.ops._c10d_functional.all_gather_into_tensor
    gathered = _wait(gather(_as_sent(x), process_group.size(), process_group.group_name)).view(x.dtype)
    _count("all_gather", gathered, group)
    return gathered


@torch.library.custom_op("tpcompile::own_part", mutates_args=())
def own_part(x: Tensor, group: str) -> Tensor:
    """This rank's part of `x` along dimension 0: the conjugate of `all_gather`.

    An operator rather than a slice, so that compiled graphs of two ranks stay one and the same.
    """
    return x.chunk(len(groups.members(group)))[groups.position(group)].clone(memory_format=torch.contiguous_format)


@torch.library.custom_op("tpcompile::broadcast", mutates_args=())
def broadcast(x: Tensor, group: str, root: int) -> Tensor:
    """The `x` of tensor-parallel rank `root`, on every rank of its group; all have one shape and type. No gradient.

    Raises:
        Refused: TP750, TP751 the group is unknown, or `root` is not in it.
    """
    process_group = groups.group_of(group)
    if root not in groups.members(group):
        raise refuse("TP751", f"group {group!r}", f"broadcasts from rank {root}, which is not in it",
                     "Broadcast from a rank of the group")  # fmt: skip
    if process_group.size() == 1:
        return x.clone(memory_format=torch.contiguous_format)
    place = groups.members(group).index(root)
    sent = _wait(torch.ops._c10d_functional.broadcast(_as_sent(x), place, process_group.group_name)).view(x.dtype)
    _count("broadcast", sent, group)
    return sent


@torch.library.custom_op("tpcompile::once", mutates_args=())
def once(x: Tensor, keep: bool) -> Tensor:
    """`x` on the rank that is to `keep` it, zeros on the others: so that a sum over ranks counts it once.

    The gradient is handed on everywhere: every rank has `x` whole, and all copies of it stay alike.
    """
    return x.clone() if keep else torch.zeros_like(x)


@torch.library.custom_op("tpcompile::scale_gradient", mutates_args=())
def scale_gradient(x: Tensor, factor: Tensor) -> Tensor:
    """`x`; the gradient is that of the result times `factor`, which broadcasts to it.

    Where some elements of `x` are held by several ranks and others by one, a sum over ranks would count those several
    times.
    """
    return x.clone()


@all_reduce.register_fake
def _(x: Tensor, group: str, reduce: str = "sum", trains: bool = True) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@copy.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return torch.empty_like(x)


@all_gather.register_fake
def _(x: Tensor, group: str, trains: bool = True) -> Tensor:
    return x.new_empty([x.shape[0] * len(groups.members(group)), *x.shape[1:]])


@own_part.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return x.new_empty([x.shape[0] // len(groups.members(group)), *x.shape[1:]])


@broadcast.register_fake
def _(x: Tensor, group: str, root: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@once.register_fake
def _(x: Tensor, keep: bool) -> Tensor:
    return torch.empty_like(x)


@scale_gradient.register_fake
def _(x: Tensor, factor: Tensor) -> Tensor:
    return torch.empty_like(x)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """What gradients need to know: the arguments behind the tensor."""
    ctx.arguments = inputs[1:]


def _check_trains(trains: bool) -> None:
    if not trains:
        fact = "a gradient comes to a program that was made to run only"
        raise refuse("TP759", "backward", fact, "Make it with training=True (on the command line: --training)")


def _of_all_reduce(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
    _check_trains(ctx.arguments[2])
    return (gradient if ctx.arguments[1] == "sum" else None), None, None, None


def _of_copy(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    if gradient.is_complex():  # it travels as pairs of real numbers
        pairs = torch.view_as_real(gradient.resolve_conj())
        return torch.view_as_complex(all_reduce(pairs, ctx.arguments[0])), None
    return all_reduce(gradient, ctx.arguments[0]), None


def _of_all_gather(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    _check_trains(ctx.arguments[1])
    return own_part(gradient, ctx.arguments[0]), None, None


def _of_own_part(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return all_gather(gradient, ctx.arguments[0]), None


def _of_broadcast(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
    return None, None, None


def _of_once(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return gradient, None


def _keep_factor(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _of_scale_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (factor,) = ctx.saved_tensors
    return gradient * factor.to(gradient.dtype), None


all_reduce.register_autograd(_of_all_reduce, setup_context=_keep_inputs)
copy.register_autograd(_of_copy, setup_context=_keep_inputs)
all_gather.register_autograd(_of_all_gather, setup_context=_keep_inputs)
own_part.register_autograd(_of_own_part, setup_context=_keep_inputs)
broadcast.register_autograd(_of_broadcast, setup_context=_keep_inputs)
once.register_autograd(_of_once, setup_context=_keep_inputs)
scale_gradient.register_autograd(_of_scale_gradient, setup_context=_keep_factor)
