"""How calls of torch operators are read: which operator of the rules each is, what its operands and attributes are.

What does the same as a standard operator takes its name, its operands' order and its attributes: the same rule serves
both. Everything else keeps torch's name, its tensors in the schema's order, and the rest as attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Arguments = dict[str, Any]


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
        given = [arguments.get(f"{name}{k}", k - 2 * k * (rank < 2)) for name in ("dim", "axis") for k in (0, 1)]
        a, b = (given[2:] if "axis0" in arguments else given)[:2]
        perm[a % rank], perm[b % rank] = perm[b % rank], perm[a % rank]
    return {"perm": perm}


def _moves(arguments: Arguments, rank: int) -> Mapping[str, Any]:
    ends = [arguments[name] for name in ("source", "destination")]
    source, target = ([dim % rank for dim in ([end] if isinstance(end, int) else end)] for end in ends)
    rest = iter(dim for dim in range(rank) if dim not in source)
    return {"perm": [source[target.index(dim)] if dim in target else next(rest) for dim in range(rank)]}


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


def _groups(arguments: Arguments, rank: int) -> Mapping[str, Any]:
    return {"group": arguments["groups"]}


# One operand, element by element: the standard name where there is one.
reads("neg negative", "Neg")
reads("clone contiguous alias alias_copy lift", "Identity")
reads("to.dtype to.dtype_layout to.device _to_copy", "Cast")
reads("type_as to.other", "CastLike")
reads("detach detach_copy", "detach")

# Several operands that broadcast.
for _names, _op in {
    "add": "Add", "sub subtract": "Sub", "mul multiply": "Mul", "div divide true_divide": "Div", "__and__": "And",
    "__or__": "Or", "__xor__": "Xor",
}.items():  # fmt: skip
    for _name in _names.split():
        reads(f"{_name}.Tensor {_name}.Scalar", _op)
reads("div.Tensor_mode div.Scalar_mode divide.Tensor_mode divide.Scalar_mode", "floor_divide")
reads("where.self", "Where", order=("condition", "self", "other"))
reads("pow.Tensor_Tensor", "Pow")

# Products.
reads("matmul mm bmm mv", "MatMul")
reads("addmm", "Gemm", order=("mat1", "mat2", "self"))
reads("baddbmm", "baddbmm", order=("batch1", "batch2", "self"))
reads("addbmm", "addbmm", order=("batch1", "batch2", "self"))
reads("addmv", "addmv", order=("mat", "vec", "self"))
reads("addr", "addr", order=("vec1", "vec2", "self"))
reads("outer ger", "outer")
reads("_grouped_mm", "_grouped_mm", order=("self", "mat2", "offs", "bias"))
READINGS["transformers.grouped_mm_fallback.default"] = Reading("grouped_mm")  # what exporting makes of it in float32
reads("scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu", "Attention")
reads("einsum", "Einsum", lambda a, rank: {"equation": a["equation"]})
_CONVOLVED: dict[str, Any] = {"order": ("input", "weight", "bias"), "names": {"group": "groups"}}
reads("conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding", "Conv", _groups, **_CONVOLVED)
reads("conv_transpose1d conv_transpose2d.input conv_transpose3d.input", "ConvTranspose", _groups, **_CONVOLVED)

# Axes rearranged.
reads("t t_copy transpose.int transpose_copy.int swapaxes swapdims", "Transpose", _swaps)
reads("permute permute_copy", "Transpose", _permutes)
reads("movedim.int movedim.intlist moveaxis.int moveaxis.intlist", "Transpose", _moves)
reads("numpy_T", "Transpose", lambda a, rank: {"perm": list(reversed(range(rank)))})
reads("mT", "Transpose", lambda a, rank: {"perm": [*range(rank - 2), rank - 1, rank - 2]})
reads("reshape", "Reshape", sizes="shape")
reads("flatten.using_ints", "Flatten")
reads("expand expand_copy broadcast_to", "Expand", sizes="size")
reads("unflatten.int", "unflatten", sizes="sizes")
reads("repeat", "repeat", sizes="repeats")
reads("tile", "repeat", sizes="dims")
reads("squeeze.dims", "Squeeze", lambda a, rank: {"axes": _dims(a, "dim", rank) if a["dim"] else []})
reads("unsqueeze unsqueeze_copy", "Unsqueeze", lambda a, rank: {"axes": [a["dim"] % (rank + 1)]})

# Joined and taken apart.
reads("cat concat concatenate", "Concat", _axis())
reads("split_with_sizes split_with_sizes_copy unsafe_split_with_sizes", "Split", _axis(), sizes="split_sizes")
reads("slice.Tensor slice_copy.Tensor", "slice")
reads("select.int select_copy.int", "select")
reads("unbind.int unbind_copy.int", "unbind")

# Picked by index.
reads("embedding", "Gather", lambda a, rank: {"axis": 0, "padding_idx": a["padding_idx"]}, order=("weight", "indices"))
reads("index.Tensor _unsafe_index.Tensor", _picks, _indexed)
reads("index_put _unsafe_index_put", "index_put", _indexed)
reads("index_select", "Gather", _axis(), order=("self", "index"))
reads("gather", "GatherElements", _axis(), order=("self", "index"))
reads("scatter.src scatter.reduce scatter_add scatter_reduce.two", "ScatterElements", _axis(),
      order=("self", "index", "src"))  # fmt: skip
reads("scatter.value scatter.value_reduce", "scatter", _axis(), order=("self", "index"))
reads("one_hot", "OneHot", lambda a, rank: {"axis": -1})

# Normalised, sorted, reduced.
reads("softmax.int _softmax _safe_softmax", "Softmax", _axis())
reads("log_softmax.int _log_softmax", "LogSoftmax", _axis())
reads("layer_norm native_layer_norm", "LayerNormalization", _normalizes, order=("input", "weight", "bias"))
reads("rms_norm _fused_rms_norm", "RMSNormalization", _normalizes, order=("input", "weight"))
reads("group_norm", "GroupNormalization", lambda a, rank: {"num_groups": a["num_groups"]},
      order=("input", "weight", "bias"))  # fmt: skip
reads("topk sort sort.stable", "TopK", _axis())
reads("argmax argmin", "ArgMax", _searches)
reads("sum.dim_IntList sum", "ReduceSum", _reduces)
reads("mean.dim mean", "ReduceMean", _reduces)
reads("nansum count_nonzero count_nonzero.dim_IntList", "ReduceL1", _reduces)
reads("max amax any any.dim any.dims", "ReduceMax", _reduces)
reads("min amin all all.dim all.dims", "ReduceMin", _reduces)
reads("prod prod.dim_int", "ReduceProd", _reduces)
reads("logsumexp", "ReduceLogSumExp", _reduces)
reads("norm.Scalar norm.ScalarOpt_dim linalg_vector_norm", "ReduceL2", _reduces)
reads("var var.dim var.correction", "var", _reduces)
reads("std std.dim std.correction", "std", _reduces)
reads("median", "median", _reduces)
reads("var_mean.dim var_mean.correction", "var_mean", _reduces)
reads("std_mean.dim std_mean.correction", "std_mean", _reduces)
reads("aminmax", "aminmax", _reduces)
reads("max.dim min.dim median.dim", "max_along")
reads("tril triu", "Trilu")

# Made of sizes.
reads("full zeros ones empty.memory_format empty_permuted", "ConstantOfShape", sizes="size")
reads("new_zeros new_ones new_full new_empty", "made_like", sizes="size")
