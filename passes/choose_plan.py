"""Decide which dimensions are cut: the cheapest plan, or the one the user gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from glob import escape
from typing import ClassVar

from tpcompile.dims.cut import Mesh
from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.graph.program import Sizes
from tpcompile.passes.compilation import Compilation
from tpcompile.plan.asks import Answer, Asker, settle
from tpcompile.plan.balance import spread
from tpcompile.plan.contradictions import solve_with
from tpcompile.plan.cost import Prices
from tpcompile.plan.explain import reasons_left_whole
from tpcompile.plan.gathered import choose_gathered
from tpcompile.plan.machine_prices import machine_prices
from tpcompile.plan.name_patterns import named_by
from tpcompile.plan.pins import wishes_of
from tpcompile.plan.plan import make_plan
from tpcompile.plan.planfile import read_plan
from tpcompile.plan.problem import build_problem
from tpcompile.plan.recipe_asks import recipe_asks
from tpcompile.plan.solve import Choice, Solver, Wish
from tpcompile.plan.step_time import peak_activations
from tpcompile.plan.topology import find_topology
from tpcompile.plan.tp_plan import tp_plan_asks

NOMINAL = {"batch": 1, "seq": 1, "past": 2048}
"""The sizes costs are computed at where the user says nothing: one decoding step."""
PROMPT = {"batch": 1, "seq": 512, "past": 0}


@dataclass(frozen=True)
class ChoosePlan:
    """Needs the analysis; leaves the problem and the plan."""

    name: ClassVar[str] = "choose plan"

    def run(self, work: Compilation) -> str:
        request, work.model_notes = work.request, len(work.warnings)
        problem = work.problem = build_problem(
            work.analysis,
            Mesh(request.tp),
            work.cut_doors,
            nominal_sizes(work),
            nominal_sizes(work, PROMPT),
            wide=request.reduce_dtype == "float32",
        )
        work.topology = find_topology(request.topology)
        if request.plan is not None:
            given, answers = read_plan(request.plan, problem), []
            work.plan, work.wishes = make_plan(problem, given.choice, given.objective, given.reasons), None
            recipe, gathering = given.recipe, [(escape(name), "gather") for name in given.gathered]
            lost = sorted(set(given.gathered) - {value.name for value in work.program.weights})
            fact, remedy = "the model has no such weight to gather", "Make the plan again for this model"
            raise_all(Fault("TP112", f"{request.plan}: '{name}'", fact, remedy) for name in lost)
            work.solver = None
        else:
            explicit, notes = wishes_of(work.analysis, problem, request.pins, request.forbids)
            work.warnings += notes
            explicit += self.annotated(work)
            answers = self.answers(work, explicit)
            solver, choice, cost, wishes = self.solved(work, explicit, answers)
            reasons, work.solver = reasons_left_whole(solver, choice, cost, wishes), solver
            work.plan, work.wishes = make_plan(problem, choice, request.objective, reasons), wishes
            recipe, gathering = request.recipe.name if request.recipe is not None else "", [*request.pins]
        work.plan = replace(work.plan, cut=spread(work.analysis, work.plan.cut, work.cut_doors))
        asks = [answer.ask for asked in answers for answer in asked]
        gathered, notes = choose_gathered(work.program, request.tp, gathering, asks)
        work.plan = replace(work.plan, gathered=gathered, recipe=recipe)
        work.warnings += notes
        if not work.plan.cuts_something and request.tp > 1:
            reason = "cutting anything costs more than it saves" if problem.classes else "nothing in it can be cut"
            if request.plan is not None or request.pins or request.forbids:
                said = " and ".join(
                    name for name, given in (("pins", request.pins), ("forbids", request.forbids)) if given
                )
                reason = "the plan file cuts nothing" if request.plan else f"the {said} leave nothing worth cutting"
            if request.strict:
                raise refuse(
                    "TP302",
                    work.source.file,
                    f"{reason}, so every rank would run the whole model",
                    "Leave out --strict, or use --tp 1",
                )
            work.warnings.append(f"{reason}: every rank runs the whole model")
        cut = sum(1 for group in work.plan.groups if group.axes)
        return f"{cut} of {len(work.plan.groups)} kinds of dimension cut"

    def annotated(self, work: Compilation) -> list[Wish]:
        """What the model's own annotations wish, where they are to be followed; it is said that they are."""
        if work.request.annotations == "ignore":
            return []
        from tpcompile.annotations.read import follow  # ONNX models have annotations, others do not come here

        found = follow(work.source.proto, work.source.file, work.analysis, work.problem)
        if found.tensors:
            work.warnings.append(
                f"{found.tensors} annotations of weights decide the plan, as configuration '{found.configuration}' of "
                "the model says (--annotations ignore leaves them aside)"
            )
        return found.wishes

    def answers(self, work: Compilation, explicit: list[Wish]) -> list[list[Answer]]:
        """What the tp_plan and then the recipe come to on this model, but for weights that are pinned explicitly."""
        request, doors = work.request, {value.name: value for value in (*work.program.inputs, *work.program.outputs)}
        if request.recipe is None and request.tp_plan is None:
            return []
        asker, found = Asker(work.analysis, work.problem), []
        spared = frozenset(
            value for value in work.program.weights if any(named_by(name, value.name) for name, _ in request.pins)
        )
        if request.tp_plan is not None:
            asks, notes = tp_plan_asks(request.tp_plan, work.analysis)
            work.warnings += notes
            found.append([asker.answer(ask, spared) for ask in asks])
        if request.recipe is not None:
            wanted = [*explicit, *(wish for answers in found for answer in answers for wish in answer.wishes)]
            tokens, logits = (doors.get(work.roles.get(role, "")) for role in ("tokens", "logits"))
            barred = frozenset(
                value
                for value in work.program.weights
                if any(named_by(name, value.name) for name, kind in request.forbids if not kind)
            )
            answers = []
            for ask in recipe_asks(request.recipe, work.analysis, tokens, logits):
                left, mine = spared, {value for value, _, _ in ask.uses}
                if ask.kind == "gather":
                    left |= barred | asker.cut_by(wanted, ask.uses)
                    if barred & mine:
                        over = f"{len(barred & mine)} of {len(mine)} weights: a forbid keeps them whole"
                        work.warnings.append(f"{ask.label} is passed over for {over}")
                answers.append(asker.answer(ask, left))
            found.append(answers)
        return found

    def solved(
        self, work: Compilation, explicit: list[Wish], answers: list[list[Answer]]
    ) -> tuple[Solver, Choice, float, list[Wish]]:
        """The cheapest choice, its cost and the wishes it follows; with room for what is computed where memory is
        limited.
        """
        problem, limit, prices = work.problem, work.request.memory_bytes, self.prices(work, work.request.objective)
        solver = Solver(problem, prices, limit)
        wishes, notes = settle(solver, explicit, answers)
        choice, cost = solve_with(solver, wishes)
        if limit is not None:
            cut = make_plan(problem, choice, work.request.objective, {}).cut
            computed = peak_activations(work.analysis, cut, nominal_sizes(work))
            if solver.held_bytes(choice) + computed > limit:
                solver = Solver(problem, prices, limit - computed)
                wishes, notes = settle(solver, explicit, answers)
                choice, cost = solve_with(solver, wishes)
        work.warnings += notes
        return solver, choice, cost, wishes

    def prices(self, work: Compilation, objective: str) -> Prices:
        """What cutting and collectives cost under an objective."""
        if objective == "latency":
            return machine_prices(work.analysis, work.problem, work.topology, nominal_sizes(work))
        return Prices.of(objective, work.problem.mean_product_bytes, work.request.tp)


def nominal_sizes(work: Compilation, usual: Mapping[str, int] | None = None) -> Callable[[Sizes], int]:
    """What a size is at the sizes the plan is made for. Raises as `symbol_values`."""
    values = symbol_values(work, usual)
    return lambda sizes: work.samples.at(sizes, values)


def symbol_values(work: Compilation, usual: Mapping[str, int] | None = None) -> dict[str, int]:
    """The size of each symbol that the plan is made for.

    Raises:
        Refused: TP107 where --sizes names what is no size of the model.
    """
    samples, program = work.samples, work.program
    given = dict(work.request.sizes)
    meaning: dict[str, str] = {}
    tokens = next((value for value in program.inputs if value.name == work.roles.get("tokens")), None)
    axes = [(tokens, 0, "batch"), (tokens, 1, "seq"), *((pair.input, pair.axis, "past") for pair in work.state)]
    for value, axis, name in axes:
        symbol = value.shape[axis] if value is not None and value.shape and axis < len(value.shape) else None
        if isinstance(symbol, str):
            meaning.setdefault(symbol, name)
    known = [name for name in samples.symbols if not name.startswith("#")]
    wrong = sorted(name for name in given if name not in known and name not in NOMINAL)
    if wrong:
        raise refuse(
            "TP107",
            f"--sizes {','.join(wrong)}",
            "the model has no such size",
            f"Use {', '.join(list(dict.fromkeys([*NOMINAL, *sorted(known)]))[:8])}",
        )
    usual = NOMINAL if usual is None else usual
    firsts = {value.shape[0] for value in program.inputs if value.shape}
    values = {}
    for symbol in known:
        name = meaning.get(symbol, symbol)
        other = 1 if symbol in firsts else usual["seq"]  # a length of its own: what a decoder reads, an image's width
        values[symbol] = given.get(symbol, given.get(name, usual.get(name, other)))
    return values
