"""`tpcompile recipes`: the recipes and machines that come along, and the files they are, with their comments."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from importlib import resources
from typing import Any

from tpcompile.plan.recipe import find_recipe, recipe_names, recipe_text
from tpcompile.plan.topology import FOLDER, find_topology, topology_names

GENERAL = ("megatron", "memory", "latency", "gather-weights")
"""Recipes for any model, which come before those of families."""


def add_recipes_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", nargs="?", metavar="NAME|FILE", help="the one to show, with its comments; all are listed without"
    )
    parser.add_argument("--topologies", action="store_true", help="list the machines for --topology instead")
    parser.add_argument("--json", action="store_true", help="print JSON for machines")


def recipes_command(arguments: argparse.Namespace) -> int:
    """List recipes or topologies, or show one. Raises Refused TP150 to TP152 as `find_recipe`."""
    if arguments.recipe is not None:
        _show(arguments.recipe, arguments.json)
    elif arguments.topologies:
        _list("topology", {name: find_topology(name).title for name in topology_names()}, arguments.json)
    else:
        every = recipe_names()
        names = [name for name in GENERAL if name in every] + [name for name in every if name not in GENERAL]
        _list("recipe", {name: find_recipe(name).title for name in names}, arguments.json)
    return 0


def _list(what: str, titles: dict[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps([{"name": name, "title": title} for name, title in titles.items()], indent=1))
        return
    from rich.console import Console
    from rich.markup import escape

    from tpcompile.plan_report import table

    shown = table(what, "")
    for name, title in titles.items():
        shown.add_row(name, escape(title))
    console = Console(highlight=False)
    console.print(shown)
    other = "; --topologies lists the machines" if what == "recipe" else ""
    console.print(f"\ntpcompile recipes NAME shows the file of one{other}")


def _show(wanted: str, as_json: bool) -> None:
    where = f"tpcompile recipes {wanted}"
    machine = wanted in topology_names()
    if machine:
        text = resources.files(FOLDER).joinpath(f"{wanted}.toml").read_text(encoding="utf-8")
    else:
        text = recipe_text(wanted, where)
    if as_json:
        content: dict[str, Any] = asdict(find_topology(wanted)) if machine else asdict(find_recipe(wanted, where))
        print(json.dumps(content | {"file": text}, indent=1))
        return
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        from rich.syntax import Syntax

        console.print(Syntax(text, "toml", theme="ansi_light", background_color="default", word_wrap=True))
    else:
        print(text, end="")
