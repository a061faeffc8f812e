"""A table of a TOML file that somebody wrote, read so that all that is wrong with it is told at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class Table:
    """A table that collects what is wrong with it; what was wrong reads as a harmless value."""

    def __init__(self, content: Mapping[str, Any], place: str, faults: list[str]) -> None:
        self.content, self.place, self.faults = dict(content), place, faults

    def _take(self, key: str, kind: type | tuple[type, ...], what: str, default: Any) -> Any:
        found = self.content.pop(key, None)
        if found is None:
            self.faults.append(f"{self.place}{key} is missing")
        elif not isinstance(found, kind) or isinstance(found, bool):
            self.faults.append(f"{self.place}{key} is {found!r}, not {what}")
        else:
            return found
        return default

    def text(self, key: str) -> str:
        return str(self._take(key, str, "a text", ""))

    def number(self, key: str, least: float | None = None) -> float:
        found = float(self._take(key, (int, float), "a number", 1.0))
        if (least is None and found <= 0) or (least is not None and found < least) or not math.isfinite(found):
            self.faults.append(f"{self.place}{key} is {found:g}, which no machine has")
        return found

    def flag(self, key: str) -> bool:
        found = self.content.pop(key, None)
        if not isinstance(found, bool):
            self.faults.append(f"{self.place}{key} is {'missing' if found is None else repr(found)}, not true or false")
        return bool(found)

    def count(self, key: str) -> int:
        found = int(self._take(key, int, "a whole number", 1))
        if found < 1:
            self.faults.append(f"{self.place}{key} is {found}, not 1 or more")
        return found

    def table(self, key: str) -> Table:
        return Table(self._take(key, dict, "a table", {}), f"{self.place}{key}.", self.faults)

    def tables(self, key: str) -> list[Table]:
        found = self._take(key, list, "a list of tables", [{}])
        inner = [item if isinstance(item, dict) else {} for item in found] or [{}]
        return [Table(item, f"{self.place}{key}[{index}].", self.faults) for index, item in enumerate(inner)]

    def numbers(self, key: str) -> dict[str, float]:
        inner = self.table(key)
        found = {name: inner.number(name) for name in list(inner.content)}
        if not found:
            self.faults.append(f"{inner.place[:-1]} names no type")
        return found or {"float32": 1.0}

    def texts(self, key: str) -> tuple[str, ...]:
        """A text, or a list of them."""
        found = self._take(key, (str, list), "a text or a list of texts", [])
        items = [found] if isinstance(found, str) else found
        if not all(isinstance(item, str) and item for item in items):
            self.faults.append(f"{self.place}{key} is {found!r}, not a text or a list of texts")
        return tuple(item for item in items if isinstance(item, str))

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        found = self.text(key)
        if found and found not in choices:
            self.faults.append(f"{self.place}{key} is '{found}', not one of {', '.join(choices)}")
        return found

    def done(self, what: str) -> None:
        """Tell of what nobody asked for: a misspelt key would go unnoticed."""
        self.faults += [f"{self.place}{key} is no key of a {what}" for key in self.content]
