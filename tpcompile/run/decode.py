"""Greedy decoding on ranks: the likeliest token is fed back, and the caches never leave the rank that made them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tpcompile.bundle.manifest import IOEntry, Manifest, StatePair
from tpcompile.errors import refuse
from tpcompile.run import parts
from tpcompile.run.tensors import TYPES, Array

if TYPE_CHECKING:
    from tpcompile.run.rank import RankRunner

TOKENS = "tokens"


def greedy(runner: RankRunner, feeds: Mapping[str, Array], steps: int) -> dict[str, Array]:
    """Decode `steps` tokens after the prompt in `feeds`; all ranks call it with the same arrays.

    Returns "tokens", int64 [batch, steps], and the last step's whole outputs other than caches. Models without
    caches are given the whole sequence at each step.

    Raises:
        Refused: TP622 no roles tokens and logits, or fewer than one step; TP623 an input that cannot be made up.
    """
    manifest = runner.manifest
    check_roles(manifest, steps)
    whole = prompt(manifest, feeds)
    caches = {pair.input: runner.local(pair.input, whole.pop(pair.input)) for pair in manifest.state}
    produced = []
    outputs = {}
    for step in range(steps):
        values = {name: runner.local(name, array) for name, array in whole.items()} | caches
        outputs = runner.step(values)
        logits = runner.whole(manifest.roles["logits"], outputs[manifest.roles["logits"]])
        last = logits[:, -1] if logits.ndim == 3 else logits
        following = runner.same(np.ascontiguousarray(last.astype(np.float32).argmax(-1).astype(np.int64))[:, None])
        produced.append(following)
        caches = {pair.input: outputs[pair.output] for pair in manifest.state}
        if step + 1 < steps:
            whole = advance(manifest, whole, following)
    made = {TOKENS: np.concatenate(produced, axis=1)}
    kept = {pair.output for pair in manifest.state}
    return made | {name: runner.whole(name, value) for name, value in outputs.items() if name not in kept}


def check_roles(manifest: Manifest, steps: int) -> None:
    """Refuse (TP622, TP623) what greedy decoding cannot drive."""
    missing = [role for role in ("tokens", "logits") if role not in manifest.roles]
    if missing:
        raise refuse("TP622", "decoding", f"the bundle names no {' and no '.join(missing)}",
                     "Compile with `--role tokens=INPUT --role logits=OUTPUT`")  # fmt: skip
    for name in _undriven(manifest) if steps > 1 else ():
        fact = "decoding does not know how it changes from step to step"
        raise refuse("TP623", f"input {name}", fact, "Call session.run in a loop of your own")
    if steps < 1:
        raise refuse("TP622", "decoding", f"{steps} steps were asked for", "Ask for one or more")


def _undriven(manifest: Manifest) -> list[str]:
    """Inputs that must move with the tokens, but have no role that says how."""
    driven = {*manifest.roles.values(), *(pair.input for pair in manifest.state)}
    sequence = manifest.inputs[manifest.roles["tokens"]].shape[-1]
    return [
        name
        for name, entry in manifest.inputs.items()
        if name not in driven
        and (sequence in entry.shape or (_capacity(manifest) is not None and entry.dtype.startswith("int")))
    ]


def _capacity(manifest: Manifest) -> int | str | None:
    """The declared length of caches that are written in place, None where there are none."""
    fixed = [manifest.inputs[pair.input].shape[pair.axis] for pair in manifest.state if pair.kind == "in_place"]
    return fixed[0] if fixed else None


def prompt(manifest: Manifest, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All whole inputs of the first step: those given, and made up where left out.

    Caches start empty (`append`) or zero (`in_place`), the mask all ones, positions ascending after the past.
    """
    made = dict(feeds)
    tokens = feeds.get(manifest.roles["tokens"])
    if tokens is None or tokens.ndim != 2:
        raise refuse("TP622", f"input {manifest.roles['tokens']}", "decoding needs the prompt's token ids",
                     "Give integers of shape [batch, sequence]")  # fmt: skip
    sizes = _sizes(manifest, made)
    for pair in manifest.state:
        if pair.input not in made:
            made[pair.input] = _empty_cache(pair, manifest.inputs[pair.input], sizes)
    past = _past(manifest, made)
    mask = np.ones((tokens.shape[0], past + tokens.shape[1]))
    if _mask_is_fixed(manifest):
        pair = next(pair for pair in manifest.state if pair.kind == "in_place")
        mask = np.arange(made[pair.input].shape[pair.axis]) < np.full((len(tokens), 1), tokens.shape[1])
    for role, content in (
        ("mask", mask),
        ("positions", np.arange(past, past + tokens.shape[1])),
    ):
        name = manifest.roles.get(role, "")
        if name in manifest.inputs and name not in made:
            entry = manifest.inputs[name]
            content = content if content.ndim == len(entry.shape) else np.broadcast_to(content, tokens.shape)
            made[name] = np.ascontiguousarray(content.astype(TYPES[entry.dtype][1]))
    parts.check_feeds(manifest, made)
    return made


def _sizes(manifest: Manifest, feeds: Mapping[str, Array]) -> dict[str, int]:
    """What each symbol stands for, as far as the bundle and the given inputs tell."""
    return dict(manifest.sizes) | {
        symbol: size
        for name, array in feeds.items()
        if name in manifest.inputs
        for symbol, size in zip(manifest.inputs[name].shape, array.shape, strict=False)
        if isinstance(symbol, str) and symbol
    }


def _empty_cache(pair: StatePair, entry: IOEntry, sizes: Mapping[str, int]) -> Array:
    shape: list[int | str] = [sizes.get(size, size) if isinstance(size, str) else size for size in entry.shape]
    if pair.kind == "append":
        shape[pair.axis] = 0
    unknown = [size for axis, size in enumerate(shape) if isinstance(size, str)]
    if unknown:
        fact = f"{list(entry.shape)}: the size of {', '.join(unknown)} is not known"
        raise refuse("TP623", f"input {pair.input}", fact, f"Give {pair.input} with the inputs")
    return np.zeros([int(size) for size in shape], TYPES[entry.dtype][1])


def _mask_is_fixed(manifest: Manifest) -> bool:
    """Whether the mask is as long as caches that are written in place, so is filled rather than lengthened."""
    mask = manifest.roles.get("mask", "")
    return mask in manifest.inputs and _capacity(manifest) == manifest.inputs[mask].shape[-1]


def _past(manifest: Manifest, feeds: Mapping[str, Array]) -> int:
    """How many tokens the caches already hold (those written in place start with none)."""
    grown = [feeds[pair.input].shape[pair.axis] for pair in manifest.state if pair.kind == "append"]
    return grown[0] if grown else 0


def following(manifest: Manifest, whole: Mapping[str, Array], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All whole inputs but caches for the tokens in `feeds`, after a step whose whole inputs were `whole`.

    What `feeds` leaves out goes on as decoding has it: the mask sees all tokens, positions ascend.

    Raises:
        Refused: TP621 an input that does not fit, or is a cache; TP622 no tokens, or of another batch; TP623 an input
            that is left out, and has no role that says how it goes on.
    """
    name = manifest.roles[TOKENS]
    tokens = feeds.get(name)
    if tokens is None or tokens.ndim != 2 or len(tokens) != len(whole[name]):
        raise refuse("TP622", f"input {name}", "going on needs the next token ids of the same batch",
                     f"Give integers of shape [{len(whole[name])}, sequence]")  # fmt: skip
    for other in _undriven(manifest):
        if other not in feeds:
            fact = "decoding does not know how it changes from step to step"
            raise refuse("TP623", f"input {other}", fact, "Give it with the tokens")
    caches = {pair.input for pair in manifest.state}
    parts.check_feeds(without(manifest, caches), made := advance(manifest, whole, tokens) | dict(feeds))
    return made


def without(manifest: Manifest, inputs: Container[str]) -> Manifest:
    """The manifest as if the model had no such inputs."""
    return replace(manifest, inputs={name: entry for name, entry in manifest.inputs.items() if name not in inputs})


def advance(manifest: Manifest, whole: Mapping[str, Array], following: Array) -> dict[str, Array]:
    """The whole inputs of the next step, caches aside, after the tokens `following`, [batch, count]."""
    made, roles = dict(whole), manifest.roles
    tokens, mask, positions = roles["tokens"], roles.get("mask"), roles.get("positions")
    following = following.astype(whole[tokens].dtype)
    keeps, count = not manifest.state, following.shape[1]
    made[tokens] = np.concatenate([whole[tokens], following], axis=1) if keeps else following
    if mask in made:
        for _ in range(count):
            made[mask] = _mask_after(made[mask], _mask_is_fixed(manifest))
    if positions in made:
        last = whole[positions][..., -1:]
        after = last + np.arange(1, count + 1, dtype=last.dtype)
        made[positions] = np.concatenate([whole[positions], after], axis=-1) if keeps else after
    return made


def _mask_after(mask: Array, fixed: bool) -> Array:
    """The mask with one more position seen: the one after the last, or a new one at the end.

    Raises:
        Refused: TP623 a mask of fixed length has no position left.
    """
    if not fixed:
        return np.concatenate([mask, np.ones_like(mask[:, -1:])], axis=1)
    following = mask.shape[1] - (mask[:, ::-1] != 0).argmax(axis=1)
    if (following >= mask.shape[1]).any():
        raise refuse("TP623", "decoding", f"the caches are full after {mask.shape[1]} tokens", "Decode fewer steps")
    longer = mask.copy()
    longer[np.arange(len(mask)), following] = 1
    return longer
