"""Typed reading of untrusted JSON: each call returns what was asked for or refuses (TP453, TP454) naming the key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tpcompile.errors import Refused, refuse

_MISSING = object()


@dataclass(frozen=True)
class Checked:
    """A JSON object at `path` (dotted, "" at the top) of the file `where`."""

    content: Any
    where: str
    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.content, dict):
            raise self._wrong(self.path or "the file", "an object", self.content)

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _wrong(self, key: str, expected: str, found: Any) -> Refused:
        shown = repr(found)
        return refuse("TP453", self.where, f"{key} should be {expected}, found {shown[:60]}", "Compile the model again")

    def get(self, key: str, default: Any = _MISSING) -> Any:
        """The raw value of `key`; refuses where it is missing and no default stands for it."""
        value = self.content.get(key, default)
        if value is _MISSING:
            raise refuse("TP453", self.where, f"lacks the key {self._at(key)}", "Compile the model again")
        return value

    def text(self, key: str, default: Any = _MISSING) -> str:
        value = self.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(self._at(key), "a text", value)
        return value

    def integer(self, key: str, low: int | None = None) -> int:
        value = self.get(key)
        if not _is_integer(value) or (low is not None and value < low):
            raise self._wrong(self._at(key), "an integer" if low is None else f"an integer of at least {low}", value)
        return int(value)

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self.text(key)
        if value not in allowed:
            raise self._wrong(self._at(key), " or ".join(allowed), value)
        return value

    def file_name(self, key: str) -> str:
        """A name of a file in the bundle's own folder: no separators, no "..", nothing hidden or empty."""
        value = self.text(key)
        if not value or value.startswith(".") or any(mark in value for mark in ("/", "\\", "\0", ":")):
            raise refuse("TP454", self.where, f"{self._at(key)} is {value!r}, which is not a plain file name",
                         "A bundle reads only files of its own folder: do not run this one")  # fmt: skip
        return value

    def child(self, key: str) -> Checked:
        return Checked(self.get(key), self.where, self._at(key))

    def members(self, key: str) -> Iterator[tuple[str, Checked]]:
        """The objects of an object of objects, with their names."""
        return self.child(key).every()

    def every(self) -> Iterator[tuple[str, Checked]]:
        """The objects that this one consists of, with their names."""
        for name in self.content:
            yield name, self.child(name)

    def items(self, key: str) -> Iterator[Checked]:
        """The objects of a list of objects."""
        for index, item in enumerate(self._list(key)):
            yield Checked(item, self.where, f"{self._at(key)}[{index}]")

    def texts(self, key: str) -> dict[str, str]:
        inner = self.child(key)
        return {name: inner.text(name) for name in inner.content}

    def names(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        found = self._list(key)
        if not all(isinstance(name, str) for name in found):
            raise self._wrong(self._at(key), "a list of texts", found)
        return tuple(found)

    def integers(self, key: str) -> dict[str, int]:
        """An object of numbers of at least 1."""
        inner = self.child(key)
        return {name: inner.integer(name, low=1) for name in inner.content}

    def shape(self, key: str) -> tuple[int | str, ...]:
        found = self._list(key)
        if not all(isinstance(size, str) or (_is_integer(size) and size >= 0) for size in found):
            raise self._wrong(self._at(key), "a list of sizes and symbols", found)
        return tuple(found)

    def sizes(self, key: str) -> tuple[int, ...]:
        found = self._list(key)
        if not all(_is_integer(size) for size in found):
            raise self._wrong(self._at(key), "a list of sizes", found)
        return tuple(found)

    def groups(self, key: str) -> tuple[tuple[int, ...], ...]:
        found = self._list(key)
        if not all(isinstance(group, list) and all(map(_is_rank, group)) for group in found):
            raise self._wrong(self._at(key), "a list of lists of ranks", found)
        return tuple(tuple(group) for group in found)

    def ranges(self, key: str) -> tuple[tuple[tuple[int, int], ...], ...]:
        found = self._list(key)
        if not found or not all(isinstance(parts, list) and parts and all(map(_is_range, parts)) for parts in found):
            raise self._wrong(self._at(key), "one non-empty list of [low, high) ranges per rank", found)
        return tuple(tuple((low, high) for low, high in parts) for parts in found)

    def _list(self, key: str) -> list[Any]:
        value = self.get(key)
        if not isinstance(value, list):
            raise self._wrong(self._at(key), "a list", value)
        return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_rank(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _is_range(part: Any) -> bool:
    return isinstance(part, list) and len(part) == 2 and all(map(_is_integer, part)) and 0 <= part[0] < part[1]
