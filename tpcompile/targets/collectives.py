"""The op `DistCollective`: its schema, how a node of it is made, and how a collective of any dialect is read back.

Attributes are exactly those that TensorRT's parser reads; TensorRT refuses a wrong emptiness of `groups` but not a
wrong length, so `read_collective` checks both. Gather and scatter act on axis 0 with equal parts.

The other dialect is that of ONNX Runtime's CUDA builds with NCCL (`onnxruntime_dialect`): com.microsoft AllReduce,
AllGather and AllToAll over all ranks. Whoever reads rank files asks here and sees one kind of `Collective`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TypeProto, defs

from tpcompile.errors import refuse
from tpcompile.graph.local import COLLECTIVE, OWN_DOMAIN
from tpcompile.graph.scopes import subgraphs

OP_TYPE, DOMAIN = COLLECTIVE, OWN_DOMAIN
VERSION = 1
ORT_DOMAIN = "com.microsoft"
ORT_VERSION = 1
ORT_OP_TYPES = {"all_reduce": "AllReduce", "all_gather": "AllGather", "all_to_all": "AllToAll"}
REDUCING = ("all_reduce", "reduce_scatter")
MOVING = ("all_gather", "all_to_all", "broadcast")
REDUCE_OPS = ("sum", "prod", "max", "min", "avg")

_DOC = """
One collective operation over the ranks of a tensor-parallel group: every rank of the group runs the same node.
all_gather concatenates along axis 0 in the order of the group, reduce_scatter and all_to_all split axis 0 in
nb_rank equal parts. Ranks in groups and root count within the tensor-parallel group.
"""
_ATTRIBUTES = {
    "collective_operation": ("STRING", "all_reduce, all_gather, reduce_scatter, all_to_all or broadcast"),
    "reduce_op": ("STRING", "sum, prod, max, min or avg; none where nothing is reduced"),
    "root": ("INT", "the rank that broadcast sends from; -1 for every other operation"),
    "nb_rank": ("INT", "size of the group"),
    "groups": ("INTS", "ordered ranks of this rank's group; empty for all ranks"),
    "group_size": ("INT", "length of groups, so 0 for all ranks"),
}


@dataclass(frozen=True)
class Collective:
    """One collective as a rank runs it: `input` and `output` are value names; `groups` () for all ranks.

    `nb_rank` is the size of the group, 0 where the file does not say: ONNX Runtime's AllReduce is over all ranks.
    """

    op: str
    input: str
    output: str
    name: str
    nb_rank: int
    groups: tuple[int, ...] = ()
    reduce_op: str = "none"
    root: int = -1

    @property
    def reduces(self) -> bool:
        """Whether values are combined, not only moved."""
        return self.op in REDUCING

    def __str__(self) -> str:
        """For messages: all_reduce(sum) of 'h1'."""
        return f"{self.op}{f'({self.reduce_op})' if self.reduces else ''} of '{self.input}'"


def register_schema() -> None:
    """Teach onnx the op, so that onnx.checker and shape inference know it. Safe to call again."""
    if defs.has(OP_TYPE, domain=DOMAIN):
        return
    schema = defs.OpSchema(
        OP_TYPE, DOMAIN, VERSION, _DOC,
        inputs=[defs.OpSchema.FormalParameter("X", "T", "this rank's value")],
        outputs=[defs.OpSchema.FormalParameter("Y", "T", "this rank's value after the collective")],
        type_constraints=[("T", sorted(_tensor_types()), "any type of numbers or bool")],
        attributes=[defs.OpSchema.Attribute(name, getattr(defs.OpSchema.AttrType, kind), text)
                    for name, (kind, text) in _ATTRIBUTES.items()],
    )  # fmt: skip
    schema.set_type_and_shape_inference_function(_infer)
    defs.register_schema(schema)


def _tensor_types() -> set[str]:
    constraints = defs.get_schema("Identity", 21, "").type_constraints
    types = {found for constraint in constraints for found in constraint.allowed_type_strs}
    return {found for found in types if found.startswith("tensor(") and "string" not in found}


def _infer(context: Any) -> None:
    """Type as the input; axis 0 times nb_rank (all_gather), divided by it (reduce_scatter), else the input's shape."""
    given = context.get_input_type(0)
    if given is None:
        return
    made = TypeProto()
    made.CopyFrom(given)
    op = context.get_attribute("collective_operation").s.decode()
    if op in ("all_gather", "reduce_scatter") and len(made.tensor_type.shape.dim):
        ranks = context.get_attribute("nb_rank").i
        first = made.tensor_type.shape.dim[0]
        size = first.dim_value if first.HasField("dim_value") else None
        first.Clear()
        if size is not None:
            first.dim_value = size * ranks if op == "all_gather" else size // ranks
    context.set_output_type(0, made)


def make_collective(
    op: str,
    input: str,
    output: str,
    *,
    nb_rank: int,
    name: str,
    groups: Sequence[int] = (),
    reduce_op: str = "none",
    root: int = -1,
) -> onnx.NodeProto:
    """A `DistCollective` node. Raises `Refused` (TP461) where the arguments contradict each other.

    Example: ``make_collective("all_reduce", "x", "y", nb_rank=4, reduce_op="sum", name="layer.0/reduce")``.
    """
    node = onnx.helper.make_node(
        OP_TYPE, [input], [output], name=name, domain=DOMAIN,
        collective_operation=op, reduce_op=reduce_op, root=root, nb_rank=nb_rank, group_size=len(groups),
    )  # fmt: skip
    # make_attribute cannot know the type of an empty list, so it is said here.
    node.attribute.append(onnx.AttributeProto(name="groups", type=onnx.AttributeProto.INTS, ints=groups))
    read_collective(node)
    return node


def is_collective(node: onnx.NodeProto) -> bool:
    """Whether a node is a collective: a `DistCollective` of our domain, or one of ONNX Runtime's."""
    return (node.op_type == OP_TYPE and node.domain == DOMAIN) or is_ort_collective(node)


def is_ort_collective(node: onnx.NodeProto) -> bool:
    """Whether a node is a collective of ONNX Runtime."""
    return node.domain == ORT_DOMAIN and node.op_type in ORT_OP_TYPES.values()


def holds_collective(node: onnx.NodeProto) -> bool:
    """Whether a collective stands in a graph within the node, however deep."""
    return any(is_collective(inner) or holds_collective(inner) for graph in subgraphs(node) for inner in graph.node)


def is_joint(node: onnx.NodeProto) -> bool:
    """Whether all ranks must come to this node together: a collective, or a node that holds some."""
    return is_collective(node) or holds_collective(node)


def read_collective(node: onnx.NodeProto) -> Collective:
    """The collective that `node` stands for. Raises `Refused` (TP461) for a node that is none or contradicts itself."""
    where = f"collective {node.name or (node.output[0] if node.output else '')}"
    found = {attribute.name: attribute for attribute in node.attribute}
    if is_ort_collective(node):
        return _read_ort(node, found, where)
    wrong = _form_faults(node, found)
    if wrong:
        raise refuse("TP461", where, "; ".join(wrong), "Compile the model again")
    made = Collective(
        op=found["collective_operation"].s.decode(), input=node.input[0], output=node.output[0],
        name=node.name, nb_rank=found["nb_rank"].i, groups=tuple(found["groups"].ints),
        reduce_op=found["reduce_op"].s.decode(), root=found["root"].i,
    )  # fmt: skip
    wrong = _faults(made, found["group_size"].i)
    if wrong:
        raise refuse("TP461", where, "; ".join(wrong), "Compile the model again")
    return made


def _read_ort(node: onnx.NodeProto, found: dict[str, onnx.AttributeProto], where: str) -> Collective:
    op = next(name for name, op_type in ORT_OP_TYPES.items() if op_type == node.op_type)
    size, axis = (found[name].i if name in found else None for name in ("group_size", "axis"))
    wrong = _operand_faults(node)
    if op == "all_reduce":
        size = 0
    elif size is None or size < 1:
        wrong.append("lacks the attribute group_size" if size is None else f"group_size is {size}")
    if op == "all_gather" and axis != 0:  # where it is not said, ONNX Runtime's schema and kernel differ on what it is
        wrong.append("lacks the attribute axis" if axis is None else f"gathers along axis {axis}, not 0")
    if wrong:
        raise refuse("TP461", where, "; ".join(wrong), "Compile the model again")
    reduce_op = "sum" if op == "all_reduce" else "none"
    return Collective(op, node.input[0], node.output[0], node.name, size or 0, reduce_op=reduce_op)


def _operand_faults(node: onnx.NodeProto) -> list[str]:
    if (len(node.input), len(node.output)) == (1, 1):
        return []
    return [f"has {len(node.input)} inputs and {len(node.output)} outputs, not one of each"]


def _form_faults(node: onnx.NodeProto, found: dict[str, onnx.AttributeProto]) -> list[str]:
    wrong = []
    if not is_collective(node):
        wrong.append(f"is {node.domain or 'ai.onnx'}.{node.op_type}, not {DOMAIN}.{OP_TYPE}")
    wrong += _operand_faults(node)
    for name, (kind, _) in _ATTRIBUTES.items():
        if name not in found:
            wrong.append(f"lacks the attribute {name}")
        elif found[name].type != onnx.AttributeProto.AttributeType.Value(kind):
            wrong.append(f"attribute {name} is not of type {kind}")
    wrong += [f"has the unknown attribute {name}" for name in found if name not in _ATTRIBUTES]
    return wrong


def _faults(made: Collective, group_size: int) -> list[str]:
    wrong = []
    if made.op not in REDUCING + MOVING:
        wrong.append(f"unknown operation {made.op!r}")
    elif made.reduces and made.reduce_op not in REDUCE_OPS:
        wrong.append(f"{made.op} needs a reduce_op of {', '.join(REDUCE_OPS)}, found {made.reduce_op!r}")
    elif not made.reduces and made.reduce_op != "none":
        wrong.append(f"{made.op} reduces nothing, but reduce_op is {made.reduce_op!r}")
    if made.nb_rank < 1:
        wrong.append(f"nb_rank is {made.nb_rank}")
    if group_size != len(made.groups):
        wrong.append(f"group_size is {group_size} for {len(made.groups)} ranks in groups")
    different = len(set(made.groups)) == len(made.groups) == made.nb_rank
    if made.groups and (not different or min(made.groups) < 0):
        wrong.append(f"groups {list(made.groups)} is no list of {made.nb_rank} different ranks")
    if made.op == "broadcast":
        if made.root not in (made.groups or range(made.nb_rank)):
            wrong.append(f"root {made.root} is not in the group")
    elif made.root != -1:
        wrong.append(f"root is {made.root}, and only broadcast has one")
    return wrong
