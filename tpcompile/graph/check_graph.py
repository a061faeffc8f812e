"""Faults of a graph's structure: names, what nodes read and make, their form, cycles, and functions.

Works on the messages alone and does not trust them. onnx.checker is not used: it serializes the model, reads weights'
files, and stops at the first fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from tpcompile.errors import Fault
from tpcompile.graph.contents import function_label, node_label
from tpcompile.graph.scopes import captured_names, defined_names, subgraphs

MAX_NODES = 1_000_000
"""Nodes that inlining functions may lead to; the largest real models have some ten thousand."""

_AGAIN = "Export or save the model again, and check it with onnx.checker"


def graph_faults(model: ModelProto) -> list[Fault]:
    """Everything that is wrong with the structure of the model's graph and functions."""
    versions = {_domain(entry.domain): entry.version for entry in model.opset_import}
    known = {(_domain(function.domain), function.name) for function in model.functions}
    faults = list(_scope(_Scope(model.graph, "", frozenset(), versions, known)))
    for function in model.functions:
        names = (*function.input, *function.output, function.name, function.domain, function.overload)
        if not all(isinstance(name, str) for name in names):
            faults.append(Fault("TP219", function_label(function), "a name in it is not UTF-8 text", _AGAIN))
            continue
        body = GraphProto(node=function.node)
        body.input.extend(onnx.ValueInfoProto(name=name) for name in function.input)
        body.output.extend(onnx.ValueInfoProto(name=name) for name in function.output)
        own = {_domain(entry.domain): entry.version for entry in function.opset_import}
        faults += _scope(_Scope(body, f"{function_label(function)}, ", frozenset(), own, known, in_function=True))
    if not faults:
        faults += _function_faults(model)
    return faults


@dataclass(frozen=True)
class _Scope:
    """A graph, how to speak of it, the outer values it may read, and what its operators mean."""

    graph: GraphProto
    place: str
    outer: AbstractSet[str]
    versions: dict[str, int]
    functions: AbstractSet[tuple[str, str]]
    in_function: bool = False
    nested: bool = False


def _scope(scope: _Scope) -> Iterator[Fault]:
    graph, place = scope.graph, scope.place
    own = defined_names(graph)
    odd = [name for name in (graph.name, *own) if not isinstance(name, str)]
    if odd:
        yield Fault("TP219", place.removesuffix(", "), f"the name {odd[0]!r} is not UTF-8 text", _AGAIN)
        return
    doubled = list(_duplicates(graph, place))
    yield from doubled
    for info in (*graph.input, *graph.output):
        if not all(isinstance(dim.dim_param, str) for dim in info.type.tensor_type.shape.dim):
            yield Fault("TP219", f"{place}value {info.name}", "the name of an axis is not UTF-8 text", _AGAIN)
    visible = scope.outer | own
    missing = False
    nested: list[tuple[NodeProto, str]] = []
    for index, node in enumerate(graph.node):
        yield from _node(node, index, scope)
        for name in node.input:
            if name and name not in visible and isinstance(name, str):
                missing = True
                fact = f"reads {name!r}, which nothing makes"
                yield Fault("TP216", f"{place}{node_label(node, index)}", fact, _AGAIN)
        if node.attribute and any(True for _ in subgraphs(node)):
            nested.append((node, f"{place}{node_label(node, index)}, "))
    for value in graph.output:
        if value.name not in (visible if scope.nested else own):
            yield Fault("TP216", f"{place}output {value.name}", "nothing makes it", _AGAIN)
    for node, label in nested:
        for inner in subgraphs(node):
            yield from _scope(
                _Scope(inner, label, visible, scope.versions, scope.functions, scope.in_function, nested=True)
            )
    if not missing and not doubled:
        yield from _cycle(graph, place)


def _duplicates(graph: GraphProto, place: str) -> Iterator[Fault]:
    made: dict[str, str] = {}
    inputs = {value.name for value in graph.input}
    entries = [("input", value.name) for value in graph.input]
    entries += [("weight", tensor.name) for tensor in graph.initializer if tensor.name not in inputs]
    entries += [(node_label(node, index), name) for index, node in enumerate(graph.node) for name in node.output]
    for maker, name in entries:
        if not name:
            if maker in ("input", "weight"):
                yield Fault("TP217", place.removesuffix(", "), f"an {maker} has no name".replace("an w", "a w"), _AGAIN)
        elif name in made:
            yield Fault("TP217", f"{place}value {name}", f"is made twice: {made[name]} and {maker}", _AGAIN)
        else:
            made[name] = maker
    for kind, names in (
        ("weights", [tensor.name for tensor in graph.initializer if tensor.name in inputs]),
        ("outputs", [value.name for value in graph.output]),
    ):
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Fault("TP217", f"{place}value {name}", f"stands twice among the {kind}", _AGAIN)


@dataclass(frozen=True)
class _Form:
    """What an operator's schema asks of a node."""

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    needed: tuple[int, ...]
    attributes: dict[str, int]
    required: tuple[str, ...]


@lru_cache(maxsize=4096)
def _form(domain: str, op: str, version: int) -> _Form | None:
    try:
        schema = onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated:
        return None
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return _Form(
        inputs=(schema.min_input, schema.max_input),
        outputs=(schema.min_output, schema.max_output),
        needed=tuple(k for k, formal in enumerate(schema.inputs) if formal.option == single),
        attributes={name: cast(int, a.type) for name, a in schema.attributes.items()},
        required=tuple(name for name, a in schema.attributes.items() if a.required),
    )


def _node(node: NodeProto, index: int, scope: _Scope) -> Iterator[Fault]:
    """Faults in the form of one node; operators that onnx does not know are taken as they are."""
    label = f"{scope.place}{node_label(node, index)}"
    domain = _domain(node.domain)
    if not (isinstance(node.name, str) and isinstance(node.op_type, str) and isinstance(domain, str)):
        yield Fault("TP219", f"{scope.place}node {index}", "its name or operator is not UTF-8 text", _AGAIN)
        return
    if not node.op_type:
        yield Fault("TP219", label, "names no operator", _AGAIN)
        return
    if not all(isinstance(name, str) for name in node.input):
        yield Fault("TP219", label, "the name of an input is not UTF-8 text", _AGAIN)
        return
    given: dict[str, AttributeProto] = {}
    for attribute in node.attribute:
        if fact := _attribute_fault(attribute, given, scope.in_function):
            yield Fault("TP219", label, fact, _AGAIN)
            return
        given[attribute.name] = attribute
    if (domain, node.op_type) in scope.functions:
        return
    version = scope.versions.get(domain)
    if version is None:
        fact = f"{node.op_type} is of the domain {domain!r}, of which the model imports no version"
        yield Fault("TP219", label, fact, _AGAIN)
        return
    form = _form(domain, node.op_type, version)
    if form is not None and (fact := _form_fault(node, form, given)):
        yield Fault("TP219", label, f"{node.op_type} {fact}", _AGAIN)
    elif node.op_type == "If" and domain == "" and not scope.in_function:
        for inner in subgraphs(node):
            if len(inner.output) != len(node.output):
                fact = f"has {len(node.output)} outputs, and a branch of it {len(inner.output)}"
                yield Fault("TP219", label, f"If {fact}", _AGAIN)


def _attribute_fault(attribute: AttributeProto, given: dict[str, AttributeProto], in_function: bool) -> str | None:
    if not isinstance(attribute.name, str) or not attribute.name:
        return "an attribute has no name, or none that is UTF-8 text"
    if attribute.name in given:
        return f"has the attribute {attribute.name} twice"
    if attribute.ref_attr_name:
        return None if in_function else f"its attribute {attribute.name} refers to a function's, and it is in none"
    if attribute.type == AttributeProto.UNDEFINED:
        return f"its attribute {attribute.name} has no type"
    return None


def _form_fault(node: NodeProto, form: _Form, given: dict[str, AttributeProto]) -> str | None:
    for ends, count, (least, most) in (
        ("inputs", len(node.input), form.inputs),
        ("outputs", len(node.output), form.outputs),
    ):
        if not least <= count <= most:
            asked = f"{least}" if least == most else f"{least} to {most}" if most < 2**31 - 1 else f"at least {least}"
            return f"has {count} {ends}, and takes {asked}"
    for position in form.needed:
        if position >= len(node.input) or not node.input[position]:
            return f"lacks its input {position}"
    for name in form.required:
        if name not in given:
            return f"lacks its attribute {name}"
    for name, attribute in given.items():
        wanted = form.attributes.get(name, attribute.type)
        if attribute.type != wanted and not attribute.ref_attr_name:
            kind = AttributeProto.AttributeType.Name
            return f"has an attribute {name} of type {kind(attribute.type)} instead of {kind(wanted)}"
    return None


def _cycle(graph: GraphProto, place: str) -> Iterator[Fault]:
    """A fault that names the nodes of one cycle, where there is one."""
    nodes = list(graph.node)
    maker = {name: k for k, node in enumerate(nodes) for name in node.output if name}
    needs: list[Sequence[str]] = [
        (*node.input, *captured_names(node)) if node.attribute else tuple(node.input) for node in nodes
    ]
    state = [0] * len(nodes)  # 0 not seen, 1 on the path, 2 done
    for root in range(len(nodes)):
        stack: list[tuple[int, Iterator[str]]] = [] if state[root] else [(root, iter(needs[root]))]
        while stack:
            node, rest = stack[-1]
            state[node] = 1
            following = next((maker[n] for n in rest if n in maker and state[maker[n]] != 2), None)
            if following is None:
                state[node] = 2
                stack.pop()
            elif state[following] == 1:
                path = [k for k, _ in stack]
                yield _cycle_fault([nodes[k] for k in path[path.index(following) :]], path, place)
                return
            else:
                stack.append((following, iter(needs[following])))


def _cycle_fault(nodes: Sequence[NodeProto], path: Sequence[int], place: str) -> Fault:
    names = [node.name or node.op_type for node in reversed(nodes)]
    shown = " → ".join(names[:6]) + (" → …" if len(names) > 6 else f" → {names[0]}")
    return Fault("TP218", place.removesuffix(", "), f"nodes read each other's outputs in a circle: {shown}", _AGAIN)


def _function_faults(model: ModelProto) -> list[Fault]:
    """Functions that call themselves, or that inlining would blow up."""
    functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}
    path: list[tuple[str, str, str]] = []

    def size(nodes: Iterable[NodeProto]) -> int:
        total = 0
        for node in nodes:
            key = (_domain(node.domain), node.op_type, node.overload)
            total += called(key, functions[key]) if key in functions else 1
            for graph in subgraphs(node):
                total += size(graph.node)
        return total

    def called(key: tuple[str, str, str], function: FunctionProto) -> int:
        if key in path:
            raise RecursionError(function_label(function))
        if key not in sizes:
            path.append(key)
            sizes[key] = size(function.node)
            path.pop()
        return sizes[key]

    remedy = "Export the model again without that function"
    if len(functions) < len(model.functions):
        return [Fault("TP217", "", "a function is defined twice", remedy)]
    try:
        total = size(model.graph.node)
        for key, function in functions.items():
            called(key, function)
    except RecursionError as error:
        return [Fault("TP221", str(error)[:100], "calls itself, or functions are nested too deep", remedy)]
    if total > MAX_NODES:
        return [Fault("TP221", "", f"its functions come to {total} nodes (at most {MAX_NODES})", remedy)]
    return []


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain
