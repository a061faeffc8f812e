"""What weights and dimensions are to the whole model, whatever they are called: the table of the tokens, the product
that makes the logits, and the dimension that layers add to.
"""

from __future__ import annotations

from collections.abc import Iterator

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.dim import Dim, leaves
from tpcompile.graph.program import Node, Value
from tpcompile.plan.uses import stored_behind

SAME_IDS = ("Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Transpose", "Slice", "Where", "Clip", "Flatten")
"""Operators whose result are ids where their operand is."""
ADDS = ("Add", "Sum", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")


def token_tables(analysis: Analysis, tokens: Value | None) -> set[Value]:
    """The stored tensors that the input of the tokens looks up: the embedding, with its scales where it has some."""
    found: set[Value] = set()
    todo = [] if tokens is None else [tokens]
    seen = set(todo)
    while todo:
        value = todo.pop()
        for node, operand in value.consumers:
            relation = analysis.relations.get(node)
            if relation is not None and relation.lookup is not None and operand == 1:
                found.update(_stored(node))
            elif node.op in SAME_IDS:
                new = [made for made in node.outputs if made is not None and made not in seen]
                seen.update(new)
                todo += new
    return found


def head_weights(analysis: Analysis, logits: Value | None) -> set[Value]:
    """The stored tensors of the last product before the logits, behind biases, scalings and caps.

    A product that makes fewer numbers than it sums over tells classes apart: it is no head over a vocabulary.
    """
    found: set[Value] = set()
    todo = [] if logits is None else [logits]
    seen = set(todo)
    while todo:
        value = todo.pop()
        node = value.producer
        if node is None:
            continue
        relation = analysis.relations.get(node)
        if relation is not None and relation.reduced:
            if value.sizes and value.sizes[-1][0] >= max(reduced.dim.size for reduced in relation.reduced):
                found.update(_stored(node))
            continue
        operands = node.inputs[1 + value.index :: len(node.outputs)] if node.regions else node.inputs
        new = [operand for operand in operands if operand is not None and operand.weight is None]
        new = [operand for operand in new if operand not in seen]
        seen.update(new)
        todo += new
    return found


def residual_dims(analysis: Analysis) -> set[Dim]:
    """The leaves that layers add to: those of x + f(x) that f sums over in a product with weights, and makes in one."""
    order = {node: index for index, node in enumerate(analysis.program.nodes)}
    found: set[Dim] = set()
    for node in analysis.relations:
        if node.op not in ADDS:
            continue
        operands = [value for value in node.inputs if value is not None and value.weight is None]
        for begin, end in ((a, b) for a in operands for b in operands if a is not b):
            carried = _leaves(analysis, begin) & _leaves(analysis, end)
            if carried - found and _made_with_weights(analysis, end):
                found |= carried & _summed_between(analysis, order, begin, end)
    return found


def _stored(node: Node) -> Iterator[Value]:
    for value in node.inputs:
        behind = stored_behind(value) if value is not None else None
        if behind is not None and behind.weight is not None and len(behind.weight.shape) > 1:
            yield behind


def _leaves(analysis: Analysis, value: Value) -> set[Dim]:
    return {leaf for dim in analysis.axes[value] or () for leaf in leaves(dim) if leaf.static and not leaf.unit}


def _made_with_weights(analysis: Analysis, value: Value) -> bool:
    """Whether a product with weights is the last one before a value: else it may be scores, to which biases add."""
    todo, seen = [value], {value}
    while todo:
        node = todo.pop().producer
        if node is None:
            continue
        operands = [operand for operand in node.inputs if operand is not None and operand.weight is None]
        if node in analysis.relations and analysis.relations[node].reduced:
            if any(_stored(node)):
                return True
            if len(operands) > 1:
                continue
        todo += [operand for operand in operands if operand not in seen]
        seen.update(operands)
    return False


def _summed_between(analysis: Analysis, order: dict[Node, int], begin: Value, end: Value) -> set[Dim]:
    """What products with weights sum over on the way from one value to another; nothing where none leads there."""
    first = order.get(begin.producer, -1) if begin.producer is not None else -1
    todo, seen, summed, arrived = [end], {end}, set[Dim](), False
    while todo:
        node = todo.pop().producer
        if node is None or order[node] <= first:
            continue
        relation = analysis.relations.get(node)
        if relation is not None and any(_stored(node)):
            summed |= {leaf for reduced in relation.reduced for leaf in leaves(reduced.dim)}
        for value in node.inputs:
            arrived = arrived or value is begin
            if value is not None and value not in seen:
                seen.add(value)
                todo.append(value)
    return summed if arrived else set()
