"""What the user asks of a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpcompile.bundle.manifest import ONNX_DIALECTS
from tpcompile.errors import Fault, raise_all
from tpcompile.plan.cost import OBJECTIVES
from tpcompile.plan.recipe import Recipe
from tpcompile.plan.topology import DEFAULT
from tpcompile.plan.tp_plan import TpPlan

PIN_KINDS = ("column", "row", "vocab", "expert", "cut", "whole", "gather")
FORBID_KINDS = ("column", "row", "vocab", "expert", "")
OUTPUT_KINDS = ("whole", "shard")
REDUCE_DTYPES = ("float32", "model")
ANNOTATIONS = ("follow", "ignore")
ROLES = ("tokens", "mask", "positions", "logits")
LARGEST_TP = 1024


@dataclass(frozen=True)
class Request:
    """Wishes of one compile or plan.

    Attributes:
        tp: how many ranks, 1 or more.
        objective: one of `OBJECTIVES`.
        pins: name pattern of weights or dimensions → how they must lie (`PIN_KINDS`).
        forbids: the same → how they must not be cut (`FORBID_KINDS`), "" for not at all.
        outputs: "whole", or "shard" to leave outputs cut where their nodes make them so.
        sizes: nominal sizes of symbols that costs are computed at.
        plan: a plan.toml to follow instead of solving.
        state: cache input → output that replaces it.
        roles: role → name of an input or output.
        reduce_dtype: "float32" to sum half precision in float32 within the rank files, or "model" to sum it as it is.
        dialect: whose collectives the rank files hold, one of `ONNX_DIALECTS`.
        topology: the machine that costs are told for, and that `latency` plans for: a name or a file.
        memory_bytes: what weights and caches may take on a rank; None for no limit.
        annotations: "follow" what the model's own sharding annotations say of its weights, or "ignore" them.
        strict: refuse where an operator without a rule, or nothing to cut, would make a rank run a whole model.
        recipe: a named set of wishes, which give way to all that is said here.
        tp_plan: Hugging Face's module → style, which gives way to pins.
        training: whether gradients are computed.
    """

    tp: int = 1
    objective: str = "balanced"
    pins: tuple[tuple[str, str], ...] = ()
    forbids: tuple[tuple[str, str], ...] = ()
    outputs: str = "whole"
    sizes: Mapping[str, int] = field(default_factory=dict)
    plan: Path | None = None
    state: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    reduce_dtype: str = "float32"
    dialect: str = ONNX_DIALECTS[0]
    topology: str = DEFAULT
    memory_bytes: int | None = None
    annotations: str = ANNOTATIONS[0]
    strict: bool = False
    recipe: Recipe | None = None
    tp_plan: TpPlan | None = None
    training: bool = False

    def __post_init__(self) -> None:
        faults = []
        if not 1 <= self.tp <= LARGEST_TP:
            faults.append(
                Fault(
                    "TP101",
                    f"--tp {self.tp}",
                    "the degree of tensor parallelism is a number of ranks",
                    f"Use 1 to {LARGEST_TP}",
                )
            )
        if self.objective not in OBJECTIVES:
            faults.append(
                Fault(
                    "TP102",
                    f"--objective {self.objective}",
                    "there is no such objective",
                    f"Use one of {', '.join(OBJECTIVES)}",
                )
            )
        for pattern, kind in self.pins:
            if kind not in PIN_KINDS:
                faults.append(
                    Fault(
                        "TP103",
                        f"--pin {pattern}={kind}",
                        f"'{kind}' is no way to lie",
                        f"Use one of {', '.join(PIN_KINDS)}",
                    )
                )
        for pattern, kind in self.forbids:
            if kind not in FORBID_KINDS:
                ways = ", ".join(filter(None, FORBID_KINDS))
                fact = f"'{kind}' is no way to be cut"
                faults.append(Fault("TP140", f"--forbid {pattern}={kind}", fact, f"Use one of {ways}, or none for any"))
        if self.outputs not in OUTPUT_KINDS:
            faults.append(
                Fault(
                    "TP105",
                    f"--outputs {self.outputs}",
                    "there is no such choice",
                    f"Use one of {', '.join(OUTPUT_KINDS)}",
                )
            )
        if self.reduce_dtype not in REDUCE_DTYPES:
            faults.append(
                Fault(
                    "TP117",
                    f"--reduce-dtype {self.reduce_dtype}",
                    "there is no such choice",
                    f"Use one of {', '.join(REDUCE_DTYPES)}",
                )
            )
        if self.dialect not in ONNX_DIALECTS:
            fact, remedy = "there is no such choice", f"Use one of {', '.join(ONNX_DIALECTS)}"
            faults.append(Fault("TP118", f"--dialect {self.dialect}", fact, remedy))
        if self.annotations not in ANNOTATIONS:
            fact, remedy = "there is no such choice", f"Use one of {', '.join(ANNOTATIONS)}"
            faults.append(Fault("TP164", f"--annotations {self.annotations}", fact, remedy))
        for name, size in self.sizes.items():
            least = 0 if name == "past" else 1  # a prompt has no past
            if size < least:
                fact = f"a size is at least {least}"
                faults.append(Fault("TP106", f"--sizes {name}={size}", fact, f"Use {name}={least} or more"))
        for role, name in self.roles.items():
            if role not in ROLES:
                faults.append(
                    Fault("TP123", f"--role {role}={name}", "there is no such role", f"Use one of {', '.join(ROLES)}")
                )
        beside = [("--pin", self.pins), ("--forbid", self.forbids), ("--objective", self.objective != OBJECTIVES[0])]
        beside += [("--recipe", self.recipe), ("--tp-plan", self.tp_plan), ("--memory-per-rank", self.memory_bytes)]
        idle = [option for option, given in beside if given]
        if self.plan is not None and idle:
            fact = f"a plan file decides alone, so {' and '.join(idle)} would change nothing"
            faults.append(Fault("TP116", f"--plan {self.plan}", fact, f"Leave out --plan, or {' and '.join(idle)}"))
        raise_all(faults)


def read_pairs(option: str, texts: list[str]) -> dict[str, str]:
    """NAME=VALUE texts of a repeated option, as a dictionary.

    Raises:
        Refused: TP100, for all texts that have another form.
    """
    found, faults = {}, []
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not name or not value:
            faults.append(
                Fault("TP100", f"{option} {text}", "it is not of the form NAME=VALUE", f"Write {option} NAME=VALUE")
            )
        else:
            found[name] = value
    raise_all(faults)
    return found


def read_forbid(text: str) -> tuple[str, str]:
    """ "GLOB=KIND", or "GLOB" for any cut."""
    pattern, equals, kind = text.rpartition("=")
    return (pattern, kind) if equals else (text, "")


def read_sizes(text: str) -> dict[str, int]:
    """ "batch=1,seq=1,past=2048" as a dictionary; raises Refused TP100 where it has another form."""
    found, faults = {}, []
    for item in filter(None, re.split(r"[,\s]+", text)):
        name, _, number = item.partition("=")
        if not name or not number.isdigit():
            faults.append(
                Fault(
                    "TP100",
                    f"--sizes {item}",
                    "it is not of the form NAME=NUMBER",
                    "Write --sizes batch=1,seq=1,past=2048",
                )
            )
        else:
            found[name] = int(number)
    raise_all(faults)
    return found


UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def read_bytes(option: str, text: str) -> int:
    """ "24GB" as a number of bytes; raises Refused TP100 where it has another form."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text)
    units = {name.lower(): size for name, size in UNITS.items()}
    if found is None or found[2].lower() not in units:
        raise_all([Fault("TP100", f"{option} {text}", "it is no amount of memory", f"Write {option} 24GB")])
        raise AssertionError
    return round(float(found[1]) * units[found[2].lower()])
