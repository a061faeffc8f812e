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

from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.plan.toml_table import Table

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
        shared_bytes_per_us: what all devices of a box read together where they share its memory, as cores do; None
            where each has its own.
    """

    name: str
    memory_bytes: float
    bytes_per_us: float
    operations_per_us: Mapping[str, float]
    step_us: float
    fuses: bool
    shared_bytes_per_us: float | None = None

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

    def reads(self, ranks: int) -> float:
        """Bytes that each of `ranks` devices reads of its memory in a microsecond while all of them do."""
        device = self.device
        if device.shared_bytes_per_us is None:
            return device.bytes_per_us
        return min(device.bytes_per_us, device.shared_bytes_per_us / min(ranks, self.levels[0].ranks))


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
    top = Table(content, "", faults)
    device = top.table("device")
    levels = top.tables("level")
    made = Topology(
        name, top.text("title"),
        Device(
            device.text("name"), device.number("memory_gb") * 1e9, device.number("bandwidth_gb_s") * 1e3,
            {key: value * 1e6 for key, value in device.numbers("tera_operations_s").items()},
            device.number("step_us", least=0.0),
            device.flag("fuses"),
            device.number("shared_bandwidth_gb_s") * 1e3 if "shared_bandwidth_gb_s" in device.content else None,
        ),
        tuple(
            Level(level.text("name"), level.count("ranks"), level.number("start_us", least=0.0),
                  level.number("hop_us", least=0.0), level.number("bandwidth_gb_s") * 1e3)
            for level in levels
        ),
        tuple([device.text("source"), *(level.text("source") for level in levels)]),
    )  # fmt: skip
    for table in (top, device, *levels):
        table.done("topology")
    example = f"See recipes/topologies/{DEFAULT}.toml for one that is right"
    raise_all(Fault("TP131", where, fault, example) for fault in faults)
    return made
