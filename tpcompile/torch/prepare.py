"""Before a graph is read: no operator writes into its operands or checks sizes, and dropout is split.

Dropout draws its noise by itself, all of it on every rank, and multiplies: ranks that have a value whole agree then,
those that have parts drop different elements, and all together drop what one device would, from the same seed.
"""

from __future__ import annotations

import copy
import math
import operator
from typing import Any, cast

import torch

from tpcompile.torch import noise as _noise  # noqa: F401 - registers the operator
from tpcompile.torch.call import append, bound, fake_mode_of
from tpcompile.torch.regions import without_regions

aten = torch.ops.aten


def prepared(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program as it is read: a copy, the graph given is not changed.

    x.add_(y) becomes x = x + y where nothing else sees x; else torch's own functionalization is asked, which tells
    what buffers and inputs are written to.

    Raises:
        Refused: TP726 an operator runs a part of the graph.
    """
    program = without_regions(program)
    if any(_writes(node) and not _alone(node) for node in program.graph.nodes):
        program = program.run_decompositions({})
    graph = torch.fx.Graph()
    table: dict[torch.fx.Node, torch.fx.Node] = {}
    ends = graph.graph_copy(program.graph, table)
    for node, made in table.items():
        made.name = node.name  # what the signature says; a copy calls an input named as Python's own otherwise
    last = next(node for node in reversed(program.graph.nodes) if node.op == "output")
    graph.output(ends).meta = dict(last.meta)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if _writes(node):
            _write_elsewhere(node)
        elif node.target in CHECKS and not node.users:
            graph.erase_node(node)
        elif node.target in DROPS:
            _split_noise(graph, node)
        elif node.target is aten._native_batch_norm_legit_functional.default:
            _keep_statistics(graph, node)
        elif node.target is aten.copy.default:
            _spread(graph, node)
    found = copy.copy(program)
    found._graph_module = torch.fx.GraphModule(torch.nn.Module(), graph)
    found._graph_module.meta = dict(program.graph_module.meta)
    return found


def _write_elsewhere(node: torch.fx.Node) -> None:
    written = node.args[0]
    assert isinstance(written, torch.fx.Node)
    node.target = _without_writing(node)
    for user in [user for user in written.users if user is not node and node < user]:
        user.replace_input_with(written, node)


def _keep_statistics(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """The running statistics as they were: the backward pass wants them still, when the buffers are written already."""
    make = _Maker(graph, node)
    node.args = tuple(make(aten.clone.default, each) if k in (3, 4) else each for k, each in enumerate(node.args))


def _spread(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """What is copied into a tensor, as it lies there; the operator that functionalization makes has no gradient."""
    given = bound(aten.copy.default, node.args, node.kwargs)
    make, into = _Maker(graph, node), given["self"]
    made = make(aten.to.dtype, given["src"], into.meta["val"].dtype)
    made = make(aten.expand.default, made, make.sizes(into))
    node.replace_all_uses_with(made)
    graph.erase_node(node)


# -- dropout ---------------------------------------------------------

DROPS = frozenset((aten.dropout.default, aten.scaled_dot_product_attention.default))


def _split_noise(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    target: Any = node.target
    given = bound(target, node.args, node.kwargs)
    drops = given["p"] if given.get("train", True) and "p" in given else given.get("dropout_p", 0.0)
    if not drops:
        return
    make = _Maker(graph, node)
    if target is aten.dropout.default:
        made = make(aten.mul.Tensor, given["input"], make.noise(given["input"], drops))
    else:
        made = _attention(make, given)
    node.replace_all_uses_with(made)
    graph.erase_node(node)


class _Maker:
    """Appends calls in front of a node, of its module."""

    def __init__(self, graph: torch.fx.Graph, node: torch.fx.Node) -> None:
        self.graph, self.node, self.fakes = graph, node, fake_mode_of(graph)

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        with self.graph.inserting_before(self.node):
            made = append(self.graph, self.fakes, target, args, kwargs)
        made.meta.update({key: value for key, value in self.node.meta.items() if key == "nn_module_stack"})
        return cast(torch.fx.Node, made)

    def sizes(self, x: torch.fx.Node) -> list[int | torch.fx.Node]:
        return [
            size if isinstance(size, int) else self(aten.sym_size.int, x, axis)
            for axis, size in enumerate(x.meta["val"].shape)
        ]

    def noise(self, x: torch.fx.Node, p: float) -> torch.fx.Node:
        """0 for what is dropped, 1 / (1 − p) for what is kept, in the shape of x."""
        value = x.meta["val"]
        return self(torch.ops.tpcompile.noise.default, self.sizes(x), p, value.dtype, value.device)


def _attention(make: _Maker, given: dict[str, Any]) -> torch.fx.Node:
    """Attention whose probabilities are dropped, step by step as torch computes it without a fused kernel."""
    q, k, v, mask = given["query"], given["key"], given["value"], given["attn_mask"]
    shapes = [each.meta["val"].shape for each in (q, k, v)]
    if given["enable_gqa"]:
        groups = shapes[0][-3] // shapes[1][-3]
        k, v = (make(aten.repeat_interleave.self_int, each, groups, -3) for each in (k, v))
    scale = given["scale"] if given["scale"] is not None else 1 / math.sqrt(shapes[0][-1])
    q = make(aten.mul.Tensor, q, math.sqrt(scale))
    k = make(aten.mul.Tensor, make(aten.transpose.int, k, -2, -1), math.sqrt(scale))
    scores = make(aten.matmul.default, q, k)
    if given["is_causal"]:
        sizes = [make.sizes(q)[-2], make.sizes(k)[-1]]
        device = q.meta["val"].device
        mask = make(aten.tril.default, make(aten.ones.default, sizes, dtype=torch.bool, device=device))
    if mask is not None and mask.meta["val"].dtype == torch.bool:
        hidden = make(aten.logical_not.default, mask)
        scores = make(aten.masked_fill.Scalar, scores, hidden, -math.inf)
    elif mask is not None:
        scores = make(aten.add.Tensor, scores, mask)
    shares = make(aten._safe_softmax.default, scores, -1)
    shares = make(aten.mul.Tensor, shares, make.noise(shares, given["dropout_p"]))
    return make(aten.matmul.default, shares, v)


# -- writing ---------------------------------------------------------

CHECKS = frozenset(
    (
        aten._assert_tensor_metadata.default,
        aten._assert_scalar.default,
        aten.sym_constrain_range_for_size.default,
        aten.sym_constrain_range.default,
    )
)
"""They hold a graph to the sizes it was exported with; a rank's are others."""


def _writes(node: torch.fx.Node) -> bool:
    if node.target is aten.batch_norm.default:  # its schema does not say so
        return bool(node.args[5]) and isinstance(node.args[3], torch.fx.Node)
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _without_writing(node: torch.fx.Node) -> Any:
    """add_.Tensor → add.Tensor; None where there is none."""
    target: Any = node.target
    name = target._schema.name.partition("::")[2]
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, target._overloadname, None) if packet is not None else None


def _alone(node: torch.fx.Node) -> bool:
    """Whether what an operator writes to is seen under no other name: made by a node, and no view either way."""
    written = node.args[0] if node.args else None
    if not isinstance(written, torch.fx.Node) or written.op == "placeholder" or _without_writing(node) is None:
        return False
    return not _aliases(written) and not any(_aliases(user) and user is not node for user in written.users)


def _aliases(node: Any) -> bool:
    """Whether a node's result may be its operand's memory; one of several results is as all of them are."""
    if node.target is operator.getitem:
        return _aliases(node.args[0])
    if not isinstance(node.target, torch._ops.OpOverload):
        return bool(node.op == "call_function")
    found = any(result.alias_info is not None for result in node.target._schema.returns)
    return found or node.target._schema.name in ("aten::to", "aten::reshape", "aten::contiguous")
