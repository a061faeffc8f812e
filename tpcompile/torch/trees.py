"""Containers of inputs and outputs, as JSON names them: only types that are registered here, and nothing looked up."""

from __future__ import annotations

import importlib
import json
from typing import Any

import torch.utils._pytree as pytree

from tpcompile.errors import Refused, refuse

OF_PYTHON = ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", "collections.deque")
NAMED_TUPLE = "collections.namedtuple"
BROUGHT = {"transformers.modeling_outputs.": "transformers.modeling_outputs"}
"""Prefixes of types whose library registers them when it is imported."""
CACHE = "transformers.cache_utils.DynamicCache"


def check_tree(text: str, where: str, of_inputs: bool = False) -> None:
    """Refuse a tree of containers (a treespec in JSON) that this process cannot rebuild from what it has registered.

    With `of_inputs` the tree is that of a call's arguments: names of keyword arguments become code.

    Raises:
        Refused: TP733 it is no tree; TP737 a type is not registered; TP736 its settings are more than plain values.
    """
    try:
        protocol, root = json.loads(text)
        assert protocol == 1
        children = _check(root, where)
    except (ValueError, TypeError, KeyError, AssertionError, RecursionError) as error:
        raise refuse("TP733", where, f"the containers of its inputs or outputs are {text[:60]!r}, which is no tree",
                     "Save it again with torch.export.save, or copy the file again") from error  # fmt: skip
    if of_inputs and len(children) == 2 and children[1]["type"] == "builtins.dict":
        for name in json.loads(children[1]["context"]):
            if not isinstance(name, str) or not name.isidentifier():
                raise _unsafe(where, children[1]["type"], name)


def _check(node: Any, where: str) -> list[Any]:
    """Check a node and those below; gives its children."""
    kind, context, children = node["type"], node["context"], node["children_spec"]
    if kind is None:
        if context is not None or children:
            raise ValueError("a leaf has nothing below it")
        return []
    if kind not in OF_PYTHON:
        _check_registered(kind, where)
    plain = context if kind == NAMED_TUPLE else json.loads(context)
    if not _is_plain(plain):
        raise _unsafe(where, kind, plain)
    if kind == NAMED_TUPLE:
        _check_registered(context, where)
    for child in children:
        _check(child, where)
    return list(children)


def _check_registered(kind: str, where: str) -> None:
    """Refuse (TP737) a type that is not registered with torch's pytree, once its library, if we know it, is loaded."""
    if kind in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE and kind != "collections.defaultdict":
        return
    library = next((library for prefix, library in BROUGHT.items() if kind.startswith(prefix)), None)
    try:
        if library is not None:
            importlib.import_module(library)
        elif kind == CACHE:
            importlib.import_module("transformers.integrations.executorch").register_dynamic_cache_export_support()
    except ImportError:
        pass  # told below
    if kind not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE or kind == "collections.defaultdict":
        fact = f"its inputs or outputs are in a {kind}, which is not registered with torch.utils._pytree here"
        remedy = "Import what registers it first, or export a module that takes and gives tensors in tuples and dicts"
        raise refuse("TP737", where, fact, remedy)


def _is_plain(value: Any) -> bool:
    """Numbers, texts and lists of them: an object could name a class that a container's own code looks up."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (int, str))


def _unsafe(where: str, kind: str, found: Any) -> Refused:
    shown = json.dumps(found)[:80]
    fact = f"a {kind} of its inputs or outputs has the settings {shown}, which could be run as code"
    return refuse("TP736", where, fact, "Export a module that takes and gives tensors in tuples and dicts")
