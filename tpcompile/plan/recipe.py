"""Recipes: named sets of wishes for the planner, as data. One TOML file each, of `recipes/` or of the user's own."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.plan.cost import OBJECTIVES
from tpcompile.plan.toml_table import Table

FOLDER = "tpcompile.recipes"
KINDS = ("column", "row", "vocab", "expert", "whole", "gather")
FORBID_KINDS = ("column", "row", "vocab", "expert")
ROLES = ("table", "head", "residual")
"""What a pin may be for instead of names: the table that tokens look up, the product that makes the logits, the
dimension that layers add to."""
CHOICES = {"objective": OBJECTIVES, "outputs": ("whole", "shard"), "reduce_dtype": ("float32", "model")}
EXAMPLE = "See recipes/llama.toml for one that is right"


@dataclass(frozen=True)
class RecipePin:
    """How some weights should lie.

    Attributes:
        patterns: names of weights or of modules they belong to; empty where `role` says what they are.
        role: one of `ROLES`, or "".
        kind: one of `KINDS`.
        forbid: whether they must not lie so; "whole" then stands for not being cut at all.
        optional: nothing is refused where the model has no such weights, or they cannot lie so.
        where: the place in the file, for messages: "llama: pins[2]".
    """

    patterns: tuple[str, ...]
    role: str
    kind: str
    optional: bool
    where: str
    forbid: bool = False


@dataclass(frozen=True)
class Recipe:
    """Wishes by name. `objective`, `outputs` and `reduce_dtype` are "" where the recipe leaves them open."""

    name: str
    title: str
    description: str
    pins: tuple[RecipePin, ...] = ()
    objective: str = ""
    outputs: str = ""
    reduce_dtype: str = ""
    extends: tuple[str, ...] = field(default=())
    """The recipes it builds on, the nearest first."""


def recipe_names() -> list[str]:
    """The recipes that come with tpcompile."""
    return sorted(entry.name.removesuffix(".toml") for entry in resources.files(FOLDER).iterdir()
                  if entry.name.endswith(".toml"))  # fmt: skip


def recipe_text(wanted: str, where: str) -> str:
    """The text of a recipe's file, comments included.

    Raises:
        Refused: TP150 there is none of that name, and no such file; TP151 the file cannot be read.
    """
    if wanted in recipe_names():
        return resources.files(FOLDER).joinpath(f"{wanted}.toml").read_text(encoding="utf-8")
    path = Path(wanted)
    if not path.is_file():
        known = difflib.get_close_matches(wanted, recipe_names(), 3, 0.4) or recipe_names()
        raise refuse("TP150", where, "there is no such recipe and no such file", f"Use {', '.join(known)}, or a file")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refuse("TP151", where, f"cannot be read ({error})", "Give a TOML file") from None


def find_recipe(wanted: str, where: str = "", after: Sequence[str] = ()) -> Recipe:
    """A recipe by name or file, with all that it builds on.

    Args:
        wanted: a name of `recipe_names()`, or a path.
        where: what a refusal names; the option by default.
        after: the recipes that were read on the way here, each of which builds on the next.

    Raises:
        Refused: TP150, TP151 as `recipe_text`, and every fault of the file; TP152 recipes that build on each other.
    """
    where = where or f"--recipe {wanted}"
    if wanted in after:
        chain = " → ".join([*after[after.index(wanted) :], wanted])
        raise refuse("TP152", where, f"recipes build on each other in a circle: {chain}", "Leave out one `extends`")
    own, base = read_recipe(recipe_text(wanted, where), wanted, where)
    if not base:
        return own
    given = str(Path(wanted).parent / base) if base not in recipe_names() and wanted not in recipe_names() else base
    below = find_recipe(given, f"{where}: extends = '{base}'", (*after, wanted))
    return replace(
        own,
        pins=(*own.pins, *below.pins),
        objective=own.objective or below.objective,
        outputs=own.outputs or below.outputs,
        reduce_dtype=own.reduce_dtype or below.reduce_dtype,
        extends=(below.name, *below.extends),
    )


def read_recipe(text: str, wanted: str, where: str) -> tuple[Recipe, str]:
    """A recipe from the text of its file, and the one it builds on ("" for none). Refuses (TP151) with every fault."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise refuse("TP151", where, f"is no TOML ({error})", "Mend the file") from None
    name = Path(wanted).name.removesuffix(".toml")
    faults: list[str] = []
    top = Table(content, "", faults)
    title, description = top.text("title"), top.text("description").strip()
    chosen = {key: top.choice(key, choices) if key in top.content else "" for key, choices in CHOICES.items()}
    base = top.text("extends") if "extends" in top.content else ""
    tables = top.tables("pins") if "pins" in top.content else []
    pins = [_read_pin(table, f"recipe {name}") for table in tables]
    against = top.tables("forbids") if "forbids" in top.content else []
    pins += [_read_pin(table, f"recipe {name}", forbid=True) for table in against]
    for table in (top, *tables, *against):
        table.done("recipe")
    raise_all(Fault("TP151", where, fault, EXAMPLE) for fault in faults)
    found = Recipe(
        name, title, description, tuple(pins), chosen["objective"], chosen["outputs"], chosen["reduce_dtype"]
    )
    return found, base


def _read_pin(table: Table, recipe: str, forbid: bool = False) -> RecipePin:
    role = table.choice("role", ROLES) if "role" in table.content else ""
    patterns = () if role else table.texts("weights")
    if forbid:
        kind = table.choice("as", FORBID_KINDS) if "as" in table.content else "whole"
    else:
        kind = table.choice("as", KINDS)
    optional = table.flag("optional") if "optional" in table.content else False
    if role == "residual" and kind != "whole":
        table.faults.append(f"{table.place}as is '{kind}', and a residual can only be kept whole")
    return RecipePin(patterns, role, kind, optional, f"{recipe}: {table.place.rstrip('.')}", forbid)
