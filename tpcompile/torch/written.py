"""Calls of torch operators that are written another way first: what they do is then said once.

Each function gets a call's node and its arguments by name, and returns the operator and arguments to take in its place;
None where this call stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Arguments = dict[str, Any]
Written = tuple[Any, Arguments] | None
aten = torch.ops.aten

WRITTEN: dict[str, Callable[[torch.fx.Node, Arguments], Written]] = {}


def written(targets: str) -> Callable[[Callable[..., Written]], Callable[..., Written]]:
    """Register how operators (base names and overloads of aten, separated by spaces) are written."""

    def register(body: Callable[..., Written]) -> Callable[..., Written]:
        for target in targets.split():
            WRITTEN[f"aten.{target}" if "." in target else f"aten.{target}.default"] = body
        return body

    return register


def _shape(node: torch.fx.Node) -> Any:
    return node.meta["val"].shape


@written("view _unsafe_view view_copy")
def _as_reshape(node: torch.fx.Node, arguments: Arguments) -> Written:
    """A view asks for strides that a rank's part may not have."""
    return aten.reshape.default, {"self": arguments["self"], "shape": arguments["size"]}


@written(
    "chunk split.Tensor split.sizes split_copy.Tensor unsafe_chunk unsafe_split.Tensor tensor_split.sections "
    "tensor_split.indices"
)
def _as_split(node: torch.fx.Node, arguments: Arguments) -> Written:
    """By the lengths of the parts, where none depends on the inputs."""
    dim = arguments["dim"]
    lengths = [part.shape[dim] for part in node.meta["val"]]
    if not all(isinstance(length, int) for length in lengths):
        return None
    return aten.split_with_sizes.default, {"self": arguments["self"], "split_sizes": lengths, "dim": dim}


def joined(tensors: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """What cat joins: a tensor of one axis and no elements counts for nothing, caches begin as one."""
    return [each for each in tensors if _shape(each) != (0,)]


@written("cat concat concatenate")
def _without_empty(node: torch.fx.Node, arguments: Arguments) -> Written:
    kept = joined(arguments["tensors"])
    whole = len(kept) == len(arguments["tensors"]) or not kept
    return None if whole else (aten.cat.default, {"tensors": kept, "dim": arguments["dim"]})


@written("squeeze squeeze.dim squeeze.dims squeeze_copy squeeze_copy.dim squeeze_copy.dims")
def _with_units(node: torch.fx.Node, arguments: Arguments) -> Written:
    """Axes that are 1 are named, and no others: a rank's part of another axis may be 1 as well."""
    sizes = _shape(arguments["self"])
    dims = arguments.get("dim", list(range(len(sizes))))
    asked = {dim % max(1, len(sizes)) for dim in ([dims] if isinstance(dims, int) else dims)}
    units = [dim for dim in sorted(asked) if dim < len(sizes) and isinstance(sizes[dim], int) and sizes[dim] == 1]
    return aten.squeeze.dims, {"self": arguments["self"], "dim": units}


@written("convolution _convolution")
def _as_conv(node: torch.fx.Node, arguments: Arguments) -> Written:
    """The one operator of all convolutions, as that of its rank and direction."""
    rank = len(_shape(arguments["weight"])) - 2
    if not 1 <= rank <= 3:
        return None
    kept = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    made = {name: arguments[name] for name in kept}
    if not arguments["transposed"]:
        return getattr(aten, f"conv{rank}d").default, made
    overload = "default" if rank == 1 else "input"
    target = getattr(getattr(aten, f"conv_transpose{rank}d"), overload)
    return target, made | {"output_padding": arguments["output_padding"]}


@written("native_group_norm")
def _as_group_norm(node: torch.fx.Node, arguments: Arguments) -> Written:
    """Where nobody asks for mean and deviation: told fewer sizes, and content with parts that lie apart in memory."""
    if any(user.users for user in node.users if user.args[1] != 0):
        return None
    kept = {name: arguments[name] for name in ("input", "weight", "bias", "eps")}
    return aten.group_norm.default, kept | {"num_groups": arguments["group"], "cudnn_enabled": True}


@written("narrow")
def _as_slice(node: torch.fx.Node, arguments: Arguments) -> Written:
    """By its two ends, where none is computed."""
    start, length = arguments["start"], arguments["length"]
    if not isinstance(start, int) or not isinstance(length, int) or start < 0:
        return None
    return aten.slice.Tensor, {
        "self": arguments["self"], "dim": arguments["dim"], "start": start, "end": start + length, "step": 1,
    }  # fmt: skip


@written("alpha_dropout feature_dropout feature_alpha_dropout")
def _as_alias(node: torch.fx.Node, arguments: Arguments) -> Written:
    """Nothing is dropped in evaluation."""
    if arguments["train"] and arguments["p"]:
        return None
    return aten.alias.default, {"self": arguments["input"]}
