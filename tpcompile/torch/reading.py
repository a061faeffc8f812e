"""How calls of torch operators are read: which operator of the rules each is, what its operands and attributes are.

What does the same as a standard operator takes its name, its operands' order and its attributes: the same rule serves
both. Everything else keeps torch's name, its tensors in the schema's order, and the rest as attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Arguments = dict[str, Any]
aten = torch.ops.aten


@dataclass(frozen=True)
class Reading:
    """How one operator is read.

    Args:
        op: the name that rules know it by; or what tells it of the arguments.
        attributes: makes the standard operator's attributes of the arguments and the first operand's rank.
        order: names of the tensor arguments, in the order of operands, where that is not the schema's.
        sizes: the argument that lists sizes: an operand of its own.
        names: attribute → argument it goes back to.
    """

    op: str | Callable[[Arguments], str]
    attributes: Callable[[Arguments, int], Mapping[str, Any]] | None = None
    order: tuple[str, ...] | None = None
    sizes: str = ""
    names: Mapping[str, str] | None = None


READINGS: dict[str, Reading] = {"tpcompile.noise.default": Reading("noise", sizes="size")}


def reads(
    targets: str,
    op: str | Callable[[Arguments], str],
    attributes: Callable[[Arguments, int], Mapping[str, Any]] | None = None,
    **more: Any,
) -> None:
    """Say how operators (base names and overloads of aten, separated by spaces) are read."""
    for target in targets.split():
        READINGS[f"aten.{target}" if "." in target else f"aten.{target}.default"] = Reading(op, attributes, **more)


def _dims(arguments: Arguments, name: str, rank: int) -> list[int]:
    given = arguments.get(name)
    dims = list(range(rank)) if given is None or given == [] else [given] if isinstance(given, int) else list(given)
    return [dim % rank if rank else 0 for dim in dims]


def _reduces(arguments: Arguments, rank: int) -> Mapping[str, Any]:
    return {
        "axes": _dims(arguments, "dim", rank),
        "keepdims": int(bool(arguments.get("keepdim", False))),
        "noop_with_empty_axes": int(not rank),
    }


def _swaps(arguments: Arguments, rank: int) -> Mapping[str, Any]:
    perm = list(range(rank))
    if rank:
        a, b = arguments.get("dim0", 0) % rank, arguments.get("dim1", rank - 1) % rank
        perm[a], perm[b] = perm[b], perm[a]
    return {"perm": perm}


def _permutes(arguments: Arguments, rank: int) -> Mapping[str, Any]:
    return {"perm": [dim % rank for dim in arguments["dims"]]}


def _axis(name: str = "dim") -> Callable[[Arguments, int], Mapping[str, Any]]:
    return lambda arguments, rank: {"axis": arguments[name]}


def _searches(arguments: Arguments, rank: int) -> Mapping[str, Any]:
    return {"axis": arguments["dim"], "keepdims": int(bool(arguments["keepdim"]))}


def _normalizes(arguments: Arguments, rank: int) -> Mapping[str, Any]:
    return {"axis": -len(arguments["normalized_shape"])}


def _indexed(arguments: Arguments, rank: int = 0) -> Mapping[str, Any]:
    axes = [axis for axis, index in enumerate(arguments["indices"]) if index is not None]
    return {"axes": axes, "axis": axes[0]}


def _picks(arguments: Arguments) -> str:
    """Indices of one axis alone look it up, as those of an embedding do; masks do not."""
    types = [index.meta["val"].dtype for index in arguments["indices"] if index is not None]
    return "Gather" if len(types) == 1 and types[0] in (torch.int64, torch.int32) else "index"


# One operand, element by element: the standard name where there is one.
for _name, _op in {
    "neg": "Neg", "clone": "Identity", "contiguous": "Identity", "alias": "Identity",
    "lift_fresh_copy": "Identity", "to.dtype": "Cast", "_to_copy": "Cast", "to.dtype_layout": "Cast",
    "to.device": "Cast", "type_as": "CastLike",
}.items():  # fmt: skip
    reads(_name, _op)

# Several operands that broadcast.
for _name, _op in {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "__and__": "And", "__or__": "Or", "__xor__": "Xor",
}.items():  # fmt: skip
    reads(f"{_name}.Tensor", _op)
reads("where.self", "Where", order=("condition", "self", "other"))
reads("pow.Tensor_Tensor", "Pow")

# Products.
reads("matmul mm bmm", "MatMul")
reads("addmm", "Gemm", order=("mat1", "mat2", "self"))
reads("baddbmm", "baddbmm", order=("batch1", "batch2", "self"))
reads("einsum", "Einsum", lambda a, rank: {"equation": a["equation"]})
reads(
    "conv1d conv2d conv3d",
    "Conv",
    lambda a, rank: {"group": a["groups"]},
    order=("input", "weight", "bias"),
    names={"group": "groups"},
)
reads("scaled_dot_product_attention", "Attention")

# Axes rearranged.
reads("t transpose.int", "Transpose", _swaps)
reads("permute", "Transpose", _permutes)
reads("numpy_T", "Transpose", lambda a, rank: {"perm": list(reversed(range(rank)))})
reads("mT", "Transpose", lambda a, rank: {"perm": [*range(rank - 2), rank - 1, rank - 2]})
reads("reshape", "Reshape", sizes="shape")
reads("flatten.using_ints", "Flatten")
reads("expand broadcast_to", "Expand", sizes="size")
reads("unflatten.int", "unflatten", sizes="sizes")
reads("repeat", "Tile", sizes="repeats")
reads("squeeze.dim squeeze.dims", "Squeeze", lambda a, rank: {"axes": _dims(a, "dim", rank)})
reads("unsqueeze", "Unsqueeze", lambda a, rank: {"axes": [a["dim"] % (rank + 1)]})

# Joined and taken apart.
reads("cat concat", "Concat", _axis())
reads("split_with_sizes", "Split", _axis(), sizes="split_sizes")

# Picked by index.
reads("embedding", "Gather", lambda a, rank: {"axis": 0, "padding_idx": a["padding_idx"]}, order=("weight", "indices"))
reads("index.Tensor", _picks, _indexed)
reads("index_put", "index_put", _indexed)
reads("index_select", "Gather", _axis(), order=("self", "index"))
reads("gather", "GatherElements", _axis(), order=("self", "index"))
reads("scatter.src", "ScatterElements", _axis(), order=("self", "index", "src"))

# Normalised, sorted, reduced.
reads("softmax.int _softmax _safe_softmax", "Softmax", _axis())
reads("log_softmax.int _log_softmax", "LogSoftmax", _axis())
reads("layer_norm native_layer_norm", "LayerNormalization", _normalizes, order=("input", "weight", "bias"))
reads("rms_norm", "RMSNormalization", _normalizes, order=("input", "weight"))
reads("group_norm", "GroupNormalization", lambda a, rank: {"num_groups": a["num_groups"]},
      order=("input", "weight", "bias"))  # fmt: skip
reads("topk sort", "TopK", _axis())
reads("argmax argmin", "ArgMax", _searches)
reads("sum.dim_IntList sum", "ReduceSum", _reduces)
reads("mean.dim mean", "ReduceMean", _reduces)
reads("amax amin any.dim all.dim any all prod.dim_int prod logsumexp", "ReduceMax", _reduces)
reads("var.correction std.correction", "ReduceMax", _reduces)
reads("tril triu", "Trilu")

# Made of sizes.
reads("full zeros ones empty.memory_format", "ConstantOfShape", sizes="size")
reads("new_zeros new_ones new_full new_empty", "made_like", sizes="size")


reads("max.dim", "max_along")
reads("min.dim", "min_along")


# Calls that are written another way first: what they do is then said once.

Written = tuple[Any, Arguments] | None


def _as_reshape(node: torch.fx.Node, arguments: Arguments) -> Written:
    """A view asks for strides that a rank's part may not have."""
    return aten.reshape.default, {"self": arguments["self"], "shape": arguments["size"]}


def _as_split(node: torch.fx.Node, arguments: Arguments) -> Written:
    """By the lengths of the parts, where none depends on the inputs."""
    dim = arguments["dim"]
    lengths = [part.shape[dim] for part in node.meta["val"]]
    if not all(isinstance(length, int) for length in lengths):
        return None
    return aten.split_with_sizes.default, {"self": arguments["self"], "split_sizes": lengths, "dim": dim}


def joined(tensors: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """What cat joins: a tensor of one axis and no elements counts for nothing, caches begin as one."""
    return [each for each in tensors if each.meta["val"].shape != (0,)]


def _without_empty(node: torch.fx.Node, arguments: Arguments) -> Written:
    kept = joined(arguments["tensors"])
    whole = len(kept) == len(arguments["tensors"]) or not kept
    return None if whole else (aten.cat.default, {"tensors": kept, "dim": arguments["dim"]})


WRITTEN: dict[str, Callable[[torch.fx.Node, Arguments], Written]] = {
    "aten.view.default": _as_reshape,
    "aten._unsafe_view.default": _as_reshape,
    "aten.chunk.default": _as_split,
    "aten.split.Tensor": _as_split,
    "aten.split.sizes": _as_split,
    "aten.cat.default": _without_empty,
}
