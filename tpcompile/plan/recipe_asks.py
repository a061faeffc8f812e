"""A recipe held against a model: which of its weights each pin means."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tpcompile.dims.analysis import Analysis
from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.graph.program import Value
from tpcompile.plan.asks import Ask, Use
from tpcompile.plan.landmarks import head_weights, residual_dims, token_tables
from tpcompile.plan.module_names import matches, names_of
from tpcompile.plan.recipe import Recipe, RecipePin
from tpcompile.plan.uses import weight_uses


def recipe_asks(recipe: Recipe, analysis: Analysis, tokens: Value | None, logits: Value | None) -> list[Ask]:
    """What a recipe asks of a model's weights, pin by pin, in the order of the file.

    Args:
        recipe: the recipe, with all that it builds on.
        analysis: the relations of the model.
        tokens, logits: the input and the output of these roles, where the model has them.

    Raises:
        Refused: TP153 names of a pin that is not optional, or none of all names, are in the model.
    """
    uses = list(weight_uses(analysis))
    names = [names_of(value, nodes) for value, _, nodes in uses]
    asks: list[Ask] = []
    faults: list[Fault] = []
    named = found = 0
    for pin in recipe.pins:
        if pin.role:
            asks += _by_role(recipe, pin, analysis, uses, tokens, logits)
        for pattern in pin.patterns:
            mine = tuple(use for use, own in zip(uses, names, strict=True) if matches(own, pattern))
            named, found = named + 1, found + bool(mine)
            if mine:
                asks.append(Ask(_label(recipe, pin, f"'{pattern}="), pin.kind, mine, (), pin.optional, pin.forbid))
            elif not pin.optional:
                fact = f"no weight or module of the model has a name like '{pattern}'{_near(pattern, names)}"
                faults.append(Fault("TP153", pin.where, fact, "Correct the pattern, or add `optional = true`"))
    raise_all(faults)
    if named and not found:
        first = next(pattern for pin in recipe.pins for pattern in pin.patterns)
        fact = f"the model has none of the names it speaks of, such as '{first}'{_near(first, names)}"
        raise refuse("TP153", f"recipe {recipe.name}", fact, "Use --recipe megatron, which goes by no names")
    return asks


def _by_role(
    recipe: Recipe, pin: RecipePin, analysis: Analysis, uses: Sequence[Use], tokens: Value | None, logits: Value | None
) -> list[Ask]:
    label = _label(recipe, pin, f"{pin.role} ")
    if pin.role == "residual":
        dims = frozenset(residual_dims(analysis))
        return [Ask(label, pin.kind, dims=dims, optional=pin.optional)] if dims else []
    tables = token_tables(analysis, tokens)  # where the head is a table as well (tied), the rows are the words of both
    meant = tables if pin.role == "table" else head_weights(analysis, logits) - tables
    mine = tuple(use for use in uses if use[0] in meant)
    return [Ask(label, pin.kind, mine, (), pin.optional, pin.forbid)] if mine else []


def _label(recipe: Recipe, pin: RecipePin, of: str) -> str:
    """Who asks for what: "recipe llama: 'q_proj=column'", "recipe megatron: head column"."""
    said = f"recipe {recipe.name}: {'forbid ' if pin.forbid else ''}{of}{pin.kind}"
    return f"{said}'" if of.startswith("'") else said


def _near(pattern: str, names: Sequence[Sequence[str]]) -> str:
    """ " (it has …)": modules of the model whose names look like a pattern, else some of them."""
    last = {name.rpartition(".")[2]: name for own in names for name in own[1:] if "." in name}
    close = difflib.get_close_matches(pattern.rpartition(".")[2], last, 3, 0.5) or list(last)[:3]
    return f" (it has {', '.join(last[name] for name in close)})" if close else ""
