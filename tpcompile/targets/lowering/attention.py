"""ONNX's own Attention: itself where TensorRT takes the form, otherwise taken apart as all others."""

from __future__ import annotations

import math

from tpcompile.targets.lowering.attention_parts import (
    Heads,
    Scoring,
    attend,
    bounded,
    heads_apart,
    heads_together,
    lowest,
)
from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.rotary import count_to
from tpcompile.targets.lowering.site import Site

MASK, PAST, LENGTHS = 3, 4, 6
PRODUCTS, WEIGHTS = 0, 3
"""What the fourth output tells: scores before anything is added, or what became of them."""


@lowering("", "Attention")
def attention(site: Site) -> list[str | None] | None:
    """TensorRT takes it with one output and without mask and soft cap, and may take it apart where it is told."""
    if site.attribute("TRT_decomposable"):
        return None
    heads, q, k, v = _sides(site)
    if _taken(site, heads):
        attributes = {entry.name: site.attribute(entry.name) for entry in site.node.attribute}
        return [site.emit("Attention", list(site.node.input)[:3], **attributes, TRT_decomposable=1)]
    caches = [k, v]
    before = ""
    if site.has(PAST):
        before = site.length(site.input(PAST), 2)
        past = []
        for index, size in ((PAST, heads.size), (PAST + 1, heads.values)):
            site.types.settle(site.input(index), 3, size)
            past.append(site.reshape(site.input(index), 0, heads.keys, 0, size))
        caches = [site.emit("Concat", pair, axis=2) for pair in zip(past, (k, v), strict=True)]
    mode = site.attribute("qk_matmul_output_mode", 0)
    if site.wants(3) and mode not in (PRODUCTS, WEIGHTS):
        raise NotLowered("scores on the way to weights are an output")
    added, visible, seeing = _masks(site, heads, before)
    how = Scoring(
        scale=site.attribute("scale") or 1.0 / math.sqrt(heads.size),
        softcap=site.attribute("softcap", 0.0),
        added=added,
        visible=visible,
        queries=site.length(site.input(0), 1 if site.rank(site.input(0)) == 3 else 2),
    )
    found = attend(site, q, caches[0], caches[1], heads, how, tell=site.wants(3))
    y, weights = (_of_seeing(site, seeing, x, heads) for x in (found.y, found.weights))
    if site.rank(site.input(0)) == 3:
        y = heads_together(site, y, heads.keys * heads.times * heads.values)
    return [y, *caches, (found.products if mode == PRODUCTS else weights) or None]


def _taken(site: Site, heads: Heads) -> bool:
    """Whether TensorRT's own operator does all that this one does."""
    more = any(map(site.has, (MASK, PAST, LENGTHS))) or any(site.wants(index) for index in (1, 2, 3))
    if more or site.attribute("softcap", 0.0) or heads.size != heads.values:
        return False
    axis = 1 if site.rank(site.input(0)) == 3 else 2
    return not site.attribute("is_causal", 0) or site.same_length(site.input(0), axis, site.input(1), axis)


def _sides(site: Site) -> tuple[Heads, str, str, str]:
    """Queries, keys and values with heads apart."""
    given = [site.input(index) for index in range(3)]
    dtype = site.dtype(given[0])
    if site.rank(given[0]) == 4:
        (count, keys), (size, values) = ((site.size(x, 1) for x in given[:2]), (site.size(x, 3) for x in given[1:]))
        return Heads(keys, count // keys, size, values, dtype), given[0], given[1], given[2]
    count, keys = site.attribute("q_num_heads"), site.attribute("kv_num_heads")
    size, values = site.size(given[0], 2) // count, site.size(given[2], 2) // keys
    parts = zip(given, (count, keys, keys), (size, size, values), strict=True)
    q, k, v = (heads_apart(site, x, number, each) for x, number, each in parts)
    return Heads(keys, count // keys, size, values, dtype), q, k, v


def _masks(site: Site, heads: Heads, before: str) -> tuple[list[str], str, str]:
    """What is added to scores, which keys are visible ("" for all), and which queries see one at all ("" for all)."""
    added: list[str] = []
    rules: list[str] = []
    shown: list[str] = []
    flat = site.rank(site.input(0)) == 3
    new = site.length(site.input(1), 1 if flat else 2)
    keys = count_to(site, site.emit("Add", [before, new]) if before else new)  # [t]
    if site.has(MASK):
        mask = site.input(MASK)
        if site.rank(mask) < 4:
            mask = site.unsqueeze(mask, *range(4 - site.rank(mask)))
        if site.dtype(site.input(MASK)) == "bool":
            rules.append(mask)
        else:
            shown.append(site.emit("Greater", [mask, lowest(site, heads.dtype)]))
            added.append(bounded(site, mask, heads.dtype))
    if site.attribute("is_causal", 0):
        if site.has(LENGTHS):
            raise NotLowered("causal with keys of different lengths")
        queries = count_to(site, site.length(site.input(0), 1 if flat else 2))
        if before:
            queries = site.emit("Add", [queries, before])
        later = site.emit("Less", [site.unsqueeze(queries, 1), keys])  # [s, t]
        rules.append(site.unsqueeze(site.emit("Not", [later]), 0, 1))
    if site.has(LENGTHS):
        counts = site.unsqueeze(site.input(LENGTHS), 1, 2, 3)
        rules.append(site.emit("Less", [keys, counts]))  # [b, 1, 1, t]
    visible = _all_of(site, rules)
    if not site.has(MASK) and not site.has(LENGTHS):
        return added, visible, ""
    counts = site.cast(_all_of(site, [*rules, *shown]), "float32")
    return added, visible, site.cast(site.reduce("ReduceMax", counts, 3), "bool")


def _all_of(site: Site, rules: list[str]) -> str:
    found = ""
    for rule in rules:
        found = site.emit("And", [found, rule]) if found else rule
    return found


def _of_seeing(site: Site, seeing: str, x: str, heads: Heads) -> str:
    """`x` [b, h, s, .], zeros for queries that see no key at all."""
    return site.emit("Where", [seeing, x, site.constant(0, heads.dtype)]) if seeing and x else x
