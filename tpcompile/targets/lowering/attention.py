"""ONNX's own Attention: itself where TensorRT takes the form, otherwise taken apart as all others."""

from __future__ import annotations

import math

from tpcompile.targets.lowering.attention_parts import HALF, Heads, Scoring, attend, heads_apart, heads_together
from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.rotary import count_to
from tpcompile.targets.lowering.site import Site

MASK, PAST, LENGTHS = 3, 4, 6
PRODUCTS, WEIGHTS = 0, 3
"""What the fourth output tells: scores before anything is added, or what became of them."""


@lowering("", "Attention")
def attention(site: Site) -> list[str | None] | None:
    """TensorRT takes it with one output, one kind of mask and no soft cap, and may take it apart where it is told."""
    if site.attribute("TRT_decomposable"):
        return None
    heads, q, k, v = _sides(site)
    if _taken(site, heads):
        attributes = {entry.name: site.attribute(entry.name) for entry in site.node.attribute}
        return [site.emit("Attention", list(site.node.input)[:4], **attributes, TRT_decomposable=1)]
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
    added, visible = _masks(site, heads, before)
    how = Scoring(
        scale=site.attribute("scale") or 1.0 / math.sqrt(heads.size),
        softcap=site.attribute("softcap", 0.0),
        added=added,
        visible=visible,
        queries=site.length(site.input(0), 1 if site.rank(site.input(0)) == 3 else 2),
    )
    found = attend(site, q, caches[0], caches[1], heads, how, tell=site.wants(3))
    flat = site.rank(site.input(0)) == 3
    y = heads_together(site, found.y, heads.keys * heads.times * heads.values) if flat else found.y
    return [y, *caches, (found.products if mode == PRODUCTS else found.weights) or None]


def _taken(site: Site, heads: Heads) -> bool:
    """Whether TensorRT's own operator does all that this one does."""
    more = site.has(PAST) or site.has(LENGTHS) or any(site.wants(index) for index in (1, 2, 3))
    if more or site.attribute("softcap", 0.0) or heads.size != heads.values:
        return False
    if site.has(MASK) and (site.dtype(site.input(MASK)) == "bool") and heads.dtype in HALF:
        return False  # its kernel would look for structure in the mask first
    if not site.attribute("is_causal", 0):
        return True
    axis = 1 if site.rank(site.input(0)) == 3 else 2
    return not site.has(MASK) and site.same_length(site.input(0), axis, site.input(1), axis)


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


def _masks(site: Site, heads: Heads, before: str) -> tuple[list[str], str]:
    """What is added to scores, and which keys are visible ("" for all)."""
    added: list[str] = []
    rules: list[str] = []
    flat = site.rank(site.input(0)) == 3
    new = site.length(site.input(1), 1 if flat else 2)
    keys = count_to(site, site.emit("Add", [before, new]) if before else new)  # [t]
    if site.has(MASK):
        mask = site.input(MASK)
        if site.rank(mask) < 4:
            mask = site.unsqueeze(mask, *range(4 - site.rank(mask)))
        (rules if site.dtype(site.input(MASK)) == "bool" else added).append(mask)
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
    visible = ""
    for rule in rules:
        visible = site.emit("And", [visible, rule]) if visible else rule
    return added, visible
