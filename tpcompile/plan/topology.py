"""The machines a plan is priced for: a device, and the links between devices, from the innermost outwards.

A topology is data: a TOML file of `recipes/topologies/`, or one of the user's own. Every number in one carries its
source.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tpcompile.errors import Fault, raise_all, refuse

FOLDER = "tpcompile.recipes.topologies"
DEFAULT = "h100x8"


@dataclass(frozen=True)
class Device:
    """One rank's processor.

    Attributes:
        memory_bytes: how much it holds.
        bytes_per_us: what it reads of its memory in a microsecond.
        operations_per_us: arithmetic operations (a multiply-add is two) in a microsecond, by the type they are done in.
        step_us: what starting one operation costs.
        fuses: whether what runs there joins element-wise operations, norms and views to the products beside them, as
            engines do.
    """

    name: str
    memory_bytes: float
    bytes_per_us: float
    operations_per_us: Mapping[str, float]
    step_us: float
    fuses: bool

    def operations(self, dtype: str) -> float:
        """Operations per microsecond in a type; of types that are not listed, those of the slowest one."""
        return self.operations_per_us.get(dtype, min(self.operations_per_us.values()))


@dataclass(frozen=True)
class Level:
    """Links of one kind: `ranks` neighbours (devices of a node, or nodes) that are joined by them.

    Attributes:
        start_us: what a collective over these links costs before the first byte moves.
        hop_us: the latency of one step from neighbour to neighbour.
        bytes_per_us: what one device sends, and receives at the same time, in a microsecond.
    """

    name: str
    ranks: int
    start_us: float
    hop_us: float
    bytes_per_us: float


@dataclass(frozen=True)
class Topology:
    """Devices and links; `levels` from the innermost outwards: ranks 0 to `levels[0].ranks` − 1 share a node."""

    name: str
    title: str
    device: Device
    levels: tuple[Level, ...]
    sources: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """How many devices there are."""
        return math.prod(level.ranks for level in self.levels)


def topology_names() -> list[str]:
    """The topologies that come with tpcompile."""
    return sorted(entry.name.removesuffix(".toml") for entry in resources.files(FOLDER).iterdir()
                  if entry.name.endswith(".toml"))  # fmt: skip


def find_topology(wanted: str) -> Topology:
    """One of the topologies that come with tpcompile, by name, or that of a file.

    Raises:
        Refused: TP130 there is none of that name, and no such file; TP131 the file is no topology, with every fault.
    """
    where = f"--topology {wanted}"
    if wanted in topology_names():
        text = resources.files(FOLDER).joinpath(f"{wanted}.toml").read_text(encoding="utf-8")
        return read_topology(text, wanted, where)
    path = Path(wanted)
    if not path.is_file():
        known = ", ".join(topology_names())
        raise refuse("TP130", where, "there is no such topology and no such file", f"Use {known}, or a TOML file")
    try:
        return read_topology(path.read_text(encoding="utf-8"), path.stem, where)
    except (OSError, UnicodeDecodeError) as error:
        raise refuse("TP131", where, f"cannot be read ({error})", "Give a TOML file") from None


def read_topology(text: str, name: str, where: str) -> Topology:
    """A topology from the text of its file. Refuses (TP131) what is none, naming every fault."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise refuse("TP131", where, f"is no TOML ({error})", "Mend the file") from None
    faults: list[str] = []
    top = _Table(content, "", faults)
    device = top.table("device")
    levels = top.tables("level")
    made = Topology(
        name, top.text("title"),
        Device(
            device.text("name"), device.number("memory_gb") * 1e9, device.number("bandwidth_gb_s") * 1e3,
            {key: value * 1e6 for key, value in device.numbers("tera_operations_s").items()},
            device.number("step_us", least=0.0),
            device.flag("fuses"),
        ),
        tuple(
            Level(level.text("name"), level.count("ranks"), level.number("start_us", least=0.0),
                  level.number("hop_us", least=0.0), level.number("bandwidth_gb_s") * 1e3)
            for level in levels
        ),
        tuple([device.text("source"), *(level.text("source") for level in levels)]),
    )  # fmt: skip
    for table in (top, device, *levels):
        table.done()
    example = f"See recipes/topologies/{DEFAULT}.toml for one that is right"
    raise_all(Fault("TP131", where, fault, example) for fault in faults)
    return made


class _Table:
    """A table of a TOML file that collects what is wrong with it."""

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

    def table(self, key: str) -> _Table:
        return _Table(self._take(key, dict, "a table", {}), f"{self.place}{key}.", self.faults)

    def tables(self, key: str) -> list[_Table]:
        found = self._take(key, list, "a list of tables", [{}])
        inner = [item if isinstance(item, dict) else {} for item in found] or [{}]
        return [_Table(item, f"{self.place}{key}[{index}].", self.faults) for index, item in enumerate(inner)]

    def numbers(self, key: str) -> dict[str, float]:
        inner = self.table(key)
        found = {name: inner.number(name) for name in list(inner.content)}
        if not found:
            self.faults.append(f"{inner.place[:-1]} names no type")
        return found or {"float32": 1.0}

    def done(self) -> None:
        """Tell of what nobody asked for: a misspelt key would go unnoticed."""
        self.faults += [f"{self.place}{key} is no key of a topology" for key in self.content]
