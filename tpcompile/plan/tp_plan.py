"""Hugging Face's tp_plan, module → style, as asks of a model's weights. Nothing of it is run, and torch is not needed.

A style says how a torch parameter is cut, and what is sent around its module. Only the first is taken over: what has to
be sent, the planner finds itself, so the styles that gather a result or split an operand mean the same as those that
do not. Styles of experts go by axes, since their parameters are no Linear layers: colwise cuts the last axis but one,
rowwise the last.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpcompile.dims.analysis import Analysis
from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.plan.asks import Ask, Use
from tpcompile.plan.module_names import names_of
from tpcompile.plan.roles import axis_roles
from tpcompile.plan.uses import weight_uses

KEYS = ("base_model_tp_plan", "tp_plan", "_tp_plan")
"""Where a configuration holds a plan."""
STYLES = {
    **dict.fromkeys(
        ("colwise", "colwise_rep", "colwise_gather_output", "local_colwise", "packed_colwise", "embedding_colwise"),
        "column",
    ),
    **dict.fromkeys(
        ("rowwise", "rowwise_rep", "rowwise_split_input", "local_rowwise", "packed_rowwise", "local_packed_rowwise"),
        "row",
    ),
    **dict.fromkeys(("embedding_rowwise", "vocab_parallel_rowwise"), "vocab"),
    **dict.fromkeys(("grouped_gemm",), "expert"),
    **dict.fromkeys(
        ("replicate", "replicated", "replicated_with_grad_allreduce", "sequence_parallel", "mla_kv_a_proj"), "whole"
    ),
}
"""What a style says of a parameter, as a kind of pin."""
SENT_ONLY = (
    "gather", "all_reduce", "moe_tp_experts", "moe_identity_expert", "ep_router", "ep_dispatch_experts", "local",
    "local_params", "isolated",
)  # fmt: skip
"""Styles that say nothing of parameters."""
GIVE = "Give a JSON file of module names and styles"
DUMP = "json.dumps(model._tp_plan), or of config.base_model_tp_plan"


@dataclass(frozen=True)
class TpPlan:
    """A plan as it was read: module → style, the modules with `*` for the numbers of layers."""

    styles: Mapping[str, str]
    where: str


def read_tp_plan(given: str | Path | Mapping[str, str]) -> TpPlan:
    """A plan from a dictionary, a JSON file of one, or a config.json that holds one.

    Raises:
        Refused: TP154 it cannot be read or holds no plan, with every fault.
    """
    if isinstance(given, Mapping):
        return _checked(given, "tp_plan")
    where = f"--tp-plan {given}"
    try:
        content = json.loads(Path(given).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise refuse(
            "TP154", where, f"cannot be read ({said})", "Give a JSON file of module names and styles"
        ) from None
    if not isinstance(content, dict):
        raise refuse("TP154", where, "is no dictionary", "Give a JSON file of module names and styles")
    held = [part[key] for part in (content, content.get("text_config")) if isinstance(part, dict) for key in KEYS
            if isinstance(part.get(key), dict)]  # fmt: skip
    if held:
        return _checked({module: style for part in held for module, style in part.items()}, where)
    if "model_type" in content or "architectures" in content:
        fact = "this configuration holds no tp_plan: transformers keeps plans in the code of its models"
        raise refuse("TP154", where, fact, f"Write one to a file: {DUMP}")
    return _checked(content, where)


def _checked(content: Mapping[Any, Any], where: str) -> TpPlan:
    faults = [
        Fault("TP154", where, f"'{module}' has {style!r} for a style", "Use names of modules and of styles")
        for module, style in content.items()
        if not isinstance(module, str) or not isinstance(style, str)
    ]
    if not content:
        faults.append(Fault("TP154", where, "is empty", f"Write a plan to it: {DUMP}"))
    raise_all(faults)
    return TpPlan(dict(content), where)


def tp_plan_asks(plan: TpPlan, analysis: Analysis) -> tuple[list[Ask], list[str]]:
    """What a plan asks of a model's weights, and what of it cannot be followed, with the reasons.

    Raises:
        Refused: TP155 no module of the plan is found among the weights.
    """
    uses = list(weight_uses(analysis))
    names = [names_of(value, nodes) for value, _, nodes in uses]
    asks: list[Ask] = []
    notes: list[str] = []
    missing: list[str] = []
    for module, style in plan.styles.items():
        label = f"tp_plan: '{module}={style}'"
        kind = STYLES.get(style)
        if kind is None:
            if style not in SENT_ONLY:
                near = difflib.get_close_matches(style, STYLES, 1)
                hint = f"; '{near[0]}' is one" if near else ""
                notes.append(f"{label} is passed over: tpcompile knows no style '{style}'{hint}")
            continue
        mine = _found(module, uses, names)
        if not mine:
            missing.append(module)
        by_kind: dict[str, list[Use]] = {}
        for use in mine:
            by_kind.setdefault(_kind_of(analysis, use, module, kind), []).append(use)
        asks += [Ask(label, own, tuple(found)) for own, found in by_kind.items()]
    if not asks:
        fact = f"none of its modules is in the model, such as '{next(iter(plan.styles))}'"
        some = [name for own in names for name in own[1:] if "." in name][:3]
        known = f"its modules are named {', '.join(dict.fromkeys(some))}, …" if some else "it has lost all their names"
        raise refuse("TP155", plan.where, f"{fact} ({known})", "Use --recipe megatron, which goes by no names")
    if missing:
        notes.append(f"tp_plan: no weight or module of the model has a name like {', '.join(missing)}")
    return asks, notes


def _kind_of(analysis: Analysis, use: Use, module: str, kind: str) -> str:
    """The kind of pin that a style means for one weight."""
    value, axes, nodes = use
    if kind == "whole" or kind == "expert":
        return kind
    roles = axis_roles(analysis, axes, nodes)
    if len(axes) > 2 and re.fullmatch(_pattern(module), value.name):  # it lies as in torch
        return roles[{"column": -2, "row": -1}.get(kind, 0)]
    tied = kind == "column" and "row" in roles  # a head that is the table
    if "vocab" in roles and (tied or kind not in roles):
        return "vocab"
    return kind


def _found(module: str, uses: Sequence[Use], names: Sequence[Sequence[str]]) -> list[Use]:
    """The weights of a module: by its full name; else by the layer and the last part alone, which may be one of several
    that an exporter fused, or the fusion of them.
    """
    pattern = re.compile(_pattern(module))
    found = [use for use, own in zip(uses, names, strict=True) if any(pattern.fullmatch(name) for name in own)]
    if found or "*" not in module:
        return found
    layer, _, rest = module.rpartition("*")
    last = rest.rpartition(".")[2]
    pattern = re.compile(f"{_pattern(layer + '*')}(?:\\..*)?\\.([^.]+)")
    for use, own in zip(uses, names, strict=True):
        lasts = {match[1] for name in own if (match := pattern.fullmatch(name))}
        if any(last == other or _is_part(last, other) or _is_part(other, last) for other in lasts):
            found.append(use)
    return found


def _pattern(module: str) -> str:
    """A regular expression of a module's names: any prefix, and a number where the plan has `*`."""
    return r"(?:.*\.)?" + r"\d+".join(map(re.escape, module.split("*")))


def _is_part(part: str, fused: str) -> bool:
    """Whether a module is one of those that another is the fusion of: q_proj of qkv_proj, up_proj of gate_up_proj."""
    own, _, suffix = part.rpartition("_")
    stem, _, other = fused.rpartition("_")
    return bool(own) and suffix == other and own != stem and (own in stem.split("_") or (len(own) == 1 and own in stem))
