"""Which shapes an engine is made for: those the user gives, the rest derived, one size per symbol.

A profile says for each input of dynamic shape its least, usual and greatest shape. Inputs that share a symbol agree in
it, and a mask that spans a cache is as long as the cache and the new tokens together. A model with caches gets two
profiles: one for prompts, and one for single steps, whose kernels are other ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpcompile.bundle.manifest import IOEntry, Manifest, Profile, ShapeRange
from tpcompile.errors import Fault, raise_all
from tpcompile.verify.files import ModelFile
from tpcompile.verify.inputs import Sizes, input_shapes, input_values, spelled, symbol_kinds

USUAL = Sizes(batch=1, seq=128, past=512, encoder=128)
"""What kernels are chosen for, where `--sizes` says nothing."""
GREATEST = Sizes(batch=4, seq=512, past=2048, encoder=512)
"""What an engine takes at most, where what it is made for is not greater."""
ROOMS = (2560, 2048, 1024, 512, 256, 128, 64, 32, 16, 8)
"""How many tokens in all to try: a model may have room for fewer than others (a table of positions, a mask)."""
IMAGES = (224, 384, 256, 512, 192, 160, 128, 96, 64, 32)
"""Heights and widths to try for images of no given size."""
LENGTHS = ("seq", "past", "encoder")
KINDS = (*LENGTHS, "batch", "image", "channels")
SPOKEN = ("batch", "seq", "past")
"""Kinds that `--sizes` knows by these names; others have the model's own."""
ENDS = ("min", "opt", "max")


@dataclass(frozen=True)
class Wishes:
    """What the user says of shapes: `sizes` by symbol or kind, and `profiles` in the engine's order."""

    sizes: Mapping[str, int]
    profiles: tuple[Profile, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """Profiles to try, one rank's shapes; `room` is how many tokens they were made for."""

    profiles: tuple[Profile, ...]
    room: int


def read_profiles(texts: Sequence[str]) -> tuple[dict[str, ShapeRange], ...]:
    """`--profile` texts, `NAME=min:opt:max` with sizes joined by x. A name that comes again begins another profile.

    Raises:
        Refused: TP100, for all texts that have another form.
    """
    profiles: list[dict[str, ShapeRange]] = [{}]
    faults = []
    for text in texts:
        name, _, shapes = text.rpartition("=")
        parts = shapes.split(":")
        if not name or len(parts) != 3 or not all(re.fullmatch(r"\d+(x\d+)*", part) for part in parts):
            remedy = "Write --profile input_ids=1x1:1x16:4x512, the least, usual and greatest shape"
            faults.append(Fault("TP100", f"--profile {text}", "it is not of the form NAME=min:opt:max", remedy))
            continue
        low, opt, high = (tuple(map(int, part.split("x"))) for part in parts)
        if name in profiles[-1]:
            profiles.append({})
        profiles[-1][name] = ShapeRange(low, opt, high)
    raise_all(faults)
    return tuple(profile for profile in profiles if profile)


def as_profiles(given: Any) -> tuple[Profile, ...]:
    """What Python callers give: a mapping of names to (min, opt, max) for one profile, or a sequence of such."""
    several = [given] if isinstance(given, Mapping) else list(given or ())
    return tuple(
        {
            name: sizes if isinstance(sizes, ShapeRange) else ShapeRange(*(tuple(map(int, shape)) for shape in sizes))
            for name, sizes in profile.items()
        }
        for profile in several
    )


def check_wishes(manifest: Manifest, wishes: Wishes) -> None:
    """Refuse, all at once, profiles and sizes that the bundle's inputs cannot have.

    Raises:
        Refused: TP706 a profile that does not fit its input; TP106, TP107 a size that is none, or not the model's.
    """
    faults = [fault for profile in wishes.profiles for name, sizes in profile.items() for fault in
              _profile_faults(manifest, name, sizes)]  # fmt: skip
    symbols = {size for entry in manifest.inputs.values() for size in entry.shape if isinstance(size, str) and size}
    for name, size in wishes.sizes.items():
        if name not in symbols and name not in SPOKEN:
            known = ", ".join(dict.fromkeys([*SPOKEN, *sorted(symbols)]))
            faults.append(Fault("TP107", f"--sizes {name}", "the model has no such size", f"Use {known}"))
        elif size < 1:
            faults.append(Fault("TP106", f"--sizes {name}={size}", "a size is at least 1", f"Use {name}=1 or more"))
    raise_all(faults)


def _profile_faults(manifest: Manifest, name: str, sizes: ShapeRange) -> Iterator[Fault]:
    where, entry = f"--profile {name}", manifest.inputs.get(name)
    if entry is None:
        yield Fault("TP706", where, "the model has no such input", f"Its inputs are {', '.join(manifest.inputs)}")
        return
    if not len(sizes.min) == len(sizes.opt) == len(sizes.max):
        yield Fault("TP706", where, "its three shapes differ in their number of axes", f"Give {_wanted(entry)} thrice")
    elif not all(low <= opt <= high for low, opt, high in zip(sizes.min, sizes.opt, sizes.max, strict=True)):
        fact = f"{list(sizes.min)}, {list(sizes.opt)}, {list(sizes.max)} do not ascend"
        yield Fault("TP706", where, fact, "Give the least, the usual and the greatest shape, in this order")
    elif not is_dynamic(entry) and len(entry.shape) < 2 and "int" in entry.dtype:
        return  # its shape is known, so these are values
    elif len(sizes.min) != len(entry.shape):
        fact = f"gives {len(sizes.min)} sizes for an input of {len(entry.shape)} axes"
        yield Fault("TP706", where, fact, f"Give {_wanted(entry)}")
    else:
        for axis, size in enumerate(entry.shape):
            other = [shape[axis] for shape in (sizes.min, sizes.opt, sizes.max) if shape[axis] != size]
            if isinstance(size, int) and other:
                fact = f"gives {other[0]} for axis {axis}, which always is {size}"
                yield Fault("TP706", where, fact, f"Give {_wanted(entry)}; sizes are those of the whole model")


def is_dynamic(entry: IOEntry) -> bool:
    """Whether any size of an input depends on the caller."""
    return not all(isinstance(size, int) for size in entry.shape)


def _wanted(entry: IOEntry) -> str:
    return " x ".join(str(size or "?") for size in entry.shape) or "one value"


def candidates(model: ModelFile, manifest: Manifest, rank: int, wishes: Wishes) -> Iterator[Candidate]:
    """Profiles for one rank, the most useful first: the next is for models that have no room for the one before.

    What is given stays in all of them. Only what the sizes of a model allow is known from outside, and TensorRT says.
    """
    seen = []
    images = IMAGES if "image" in symbol_kinds(model).values() else (USUAL.image,)
    for image in images:
        for room in ROOMS:
            for spans_past in (True, False):
                for least_past in (0, 1):
                    ends = _ends(bool(manifest.state), wishes, room, least_past)
                    ends = [replace(sizes, image=image, total_spans_past=spans_past) for sizes in ends]
                    made = tuple(_profiles(model, manifest, rank, wishes, (ends[0], ends[1], ends[2])))
                    if made not in seen:
                        seen.append(made)
                        yield Candidate(made, room)


def _ends(has_caches: bool, wishes: Wishes, room: int, least_past: int) -> list[Sizes]:
    """Least, usual and greatest sizes by kind, in a room of so many tokens."""
    least = Sizes(batch=1, seq=1, past=least_past, encoder=1)
    longest = max(1, min(GREATEST.seq, room // 4 if has_caches else room))
    greatest = replace(
        GREATEST, seq=longest, past=max(1, min(GREATEST.past, room - longest)), encoder=min(GREATEST.encoder, room)
    )
    usual = replace(USUAL, **{kind: min(getattr(USUAL, kind), getattr(greatest, kind)) for kind in LENGTHS})
    usual = _with(usual, {kind: wishes.sizes[kind] for kind in SPOKEN if kind in wishes.sizes})
    greatest = _with(
        greatest, {kind: max(getattr(usual, kind), getattr(greatest, kind)) for kind in (*LENGTHS, "batch")}
    )
    return [replace(sizes, image=usual.image, channels=usual.channels) for sizes in (least, usual, greatest)]


def _profiles(
    model: ModelFile, manifest: Manifest, rank: int, wishes: Wishes, ends: tuple[Sizes, Sizes, Sizes]
) -> Iterator[Profile]:
    """The profiles that were given, else one; for models with caches one for prompts and one for steps."""
    least, usual, greatest = ends
    if wishes.profiles:
        yield from (_bound(model, manifest, rank, wishes, ends, given) for given in wishes.profiles)
    elif not manifest.state:
        yield _bound(model, manifest, rank, wishes, ends, {})
    else:
        prompt = replace(usual, past=least.past, seq=usual.seq if usual.seq > 1 else min(USUAL.seq, greatest.seq))
        yield _bound(model, manifest, rank, wishes, (least, prompt, greatest), {})
        step = [replace(sizes, seq=1, past=max(sizes.past, 1)) for sizes in ends]
        yield _bound(model, manifest, rank, wishes, (step[0], step[1], step[2]), {})


def _bound(
    model: ModelFile, manifest: Manifest, rank: int, wishes: Wishes, ends: tuple[Sizes, Sizes, Sizes], given: Profile
) -> Profile:
    """One profile: what is given binds its symbols, and the other inputs follow."""
    kinds = symbol_kinds(model)
    shapes_of = {value.name: spelled(value) for value in input_values(model)}
    local = {name: _local(sizes, manifest.inputs[name], rank) for name, sizes in given.items()}
    shapes = []
    for end, sizes in zip(ENDS, ends, strict=True):
        symbols = {
            symbol: _wished(size, kinds.get(symbol), end, ends)
            for symbol, size in wishes.sizes.items()
            if symbol in kinds
        }
        for name, shape in ((name, getattr(chosen, end)) for name, chosen in local.items()):
            if is_dynamic(manifest.inputs[name]):
                symbols |= {
                    axis: size for axis, size in zip(shapes_of[name], shape, strict=True) if isinstance(axis, str)
                }
        follows = {str(kinds.get(symbol)): size for symbol, size in symbols.items()}
        if "total" in follows and "past" not in follows and sizes.total_spans_past:
            follows["past"] = max(0, follows["total"] - follows.get("seq", sizes.seq))
        shapes.append(input_shapes(model, _with(sizes, follows), symbols))
    derived = {
        name: ShapeRange(*(shape[name] for shape in shapes))
        for name, axes in shapes_of.items()
        if any(isinstance(axis, str) for axis in axes)
    }
    return {name: local.get(name) or derived[name] for name in shapes_of if name in local or name in derived}


def _with(sizes: Sizes, others: Mapping[str, Any]) -> Sizes:
    """The sizes with others of the same kinds."""
    return replace(sizes, **{kind: size for kind, size in others.items() if kind in KINDS})


def _wished(size: int, kind: str | int | None, end: str, ends: tuple[Sizes, Sizes, Sizes]) -> int:
    """The size at one end of a symbol that should usually be `size`; a step has one token, whatever is wished."""
    low, high = (getattr(sizes, kind) if isinstance(kind, str) else size for sizes in (ends[0], ends[2]))
    if kind in LENGTHS and low == high:
        return int(low)
    return int({"min": min(size, low), "opt": size, "max": max(size, high)}[end])


def _local(sizes: ShapeRange, entry: IOEntry, rank: int) -> ShapeRange:
    """This rank's sizes of an input that may be cut."""
    if entry.placement is None or not is_dynamic(entry):
        return sizes
    axis, size = entry.placement.axis, entry.placement.local_size(rank)
    low, opt, high = ((*shape[:axis], size, *shape[axis + 1 :]) for shape in (sizes.min, sizes.opt, sizes.max))
    return ShapeRange(low, opt, high)


def lacking_values(name: str) -> Fault:
    """An input whose values are sizes, of which nothing is said."""
    fact = "its values are sizes that shapes depend on, and nothing says which to expect"
    return Fault("TP706", f"input {name}", fact, f"Give the least, usual and greatest: --profile {name}=1:16:512")
