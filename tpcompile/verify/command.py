"""`tpcompile verify BUNDLE`: the three checks, one report."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from tpcompile.errors import Fault, NumbersDiffer, Refused, refuse
from tpcompile.graph.read import SourceModel
from tpcompile.targets.collectives import is_joint
from tpcompile.verify.branches import SIDES, walk
from tpcompile.verify.compare import Divergence, divergences, whole_output
from tpcompile.verify.files import Array, Bundle, ModelFile, open_bundle, open_source
from tpcompile.verify.form import collective_faults, form_faults
from tpcompile.verify.inputs import TRIALS, default_inputs, read_inputs, with_flags_off, with_negative_ids
from tpcompile.verify.layers import first_layers
from tpcompile.verify.layout import follow
from tpcompile.verify.simulate import Lockstep, Trace
from tpcompile.verify.source_run import SourceRun
from tpcompile.verify.tiles import Tiling, check_tiles

REMEDY = (
    "Compile the model again; if it stays, report it with the model: the compiled model must give the source's numbers"
)


@dataclass
class Check:
    """One of the checks: what it is about, what it saw, what is wrong, and what it could not decide."""

    name: str
    saw: str = ""
    faults: list[Fault] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Trial:
    """One set of inputs: the error and the allowed error of each output, and the first value beyond what is allowed."""

    name: str
    inputs: Mapping[str, str]
    errors: Mapping[str, float]
    limits: Mapping[str, float]
    first_divergence: str | None = None

    @property
    def worst(self) -> tuple[str, float, float]:
        """The output nearest to its limit or furthest beyond it: name, error, limit."""
        name = max(self.errors, key=lambda name: self.errors[name] / self.limits[name])
        return name, self.errors[name], self.limits[name]


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found. `ok` where no check has a fault; warnings do not count."""

    bundle: str
    checks: tuple[Check, ...]
    trials: tuple[Trial, ...]

    @property
    def faults(self) -> list[Fault]:
        return [fault for check in self.checks for fault in check.faults]

    @property
    def ok(self) -> bool:
        return not self.faults

    def raise_if_bad(self) -> None:
        """Raise `NumbersDiffer` (exit code 3) with every fault; do nothing where there is none."""
        if self.faults:
            raise NumbersDiffer(*self.faults)

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, for `--json`."""
        checks = [
            {
                "name": c.name,
                "ok": not c.faults,
                "saw": c.saw,
                "faults": [str(f) for f in c.faults],
                "warnings": c.warnings,
            }
            for c in self.checks
        ]
        trials = [
            {
                "name": t.name,
                "inputs": dict(t.inputs),
                "errors": dict(t.errors),
                "limits": dict(t.limits),
                "first_divergence": t.first_divergence,
            }
            for t in self.trials
        ]
        return {"bundle": self.bundle, "ok": self.ok, "checks": checks, "trials": trials}


def verify_bundle(
    bundle: Path | str,
    source: Path | str | onnx.ModelProto | SourceModel | None = None,
    inputs: Mapping[str, Array] | Path | None = None,
    allow_links: bool = False,
    memory_bytes: int | None = None,
    layers: int | None = None,
) -> VerifyReport:
    """Check a bundle against the model it was made from.

    `source`: the model, by default bundle.json's source file where it lies in or beside the bundle. `inputs`: arrays by
    name or an .npz file, by default made from the model's inputs, in several sizes. `allow_links`: follow links among
    the source's data files. `memory_bytes`: about what may be held at once; source and ranks are then run part by part,
    each weight loaded while its part runs, and large values go to temporary files (default: no limit, which is faster).
    `layers`: all checks but that of the form go only to the end of that layer.

    Raises:
        Refused: the bundle cannot be read (TP45x, TP501), the source is not found (TP502) or refused (TP2xx), the
            inputs do not fit it (TP503), or onnxruntime cannot open it (TP504). Faults of the bundle are in the report.
    """
    opened = open_bundle(Path(bundle))
    model = open_source(source, allow_links) if source is not None else _source_beside(opened, allow_links)
    form = [*form_faults(opened, model), *collective_faults(opened)]
    if layers is not None:
        opened, model = first_layers(opened, model, layers)
    tiling = check_tiles(opened, model)
    checks = [
        Check(
            "weights",
            f"{len(tiling.parts)} tensors, {tiling.checked_bytes / 1e6:.1f} MB compared bit by bit",
            tiling.faults,
            tiling.warnings,
        ),
        Check(
            "form",
            f"{opened.tp} rank files, {len(opened.manifest.collectives)} collectives",
            form,
        ),
    ]
    layout, numbers = Check("layout"), Check("numbers")
    trials = tuple(_run(opened, model, tiling, inputs, layout, numbers, memory_bytes))
    return VerifyReport(str(bundle), (*checks, layout, numbers), trials)


def _source_beside(bundle: Bundle, allow_links: bool) -> ModelFile:
    name = Path(bundle.manifest.source.file).name
    for folder in (bundle.folder, bundle.folder.resolve().parent):
        if (folder / name).is_file():
            return open_source(folder / name, allow_links)
    raise refuse(
        "TP502",
        str(bundle.folder),
        f"its source {name!r} lies neither in the bundle nor beside it",
        "Say where it is with --source MODEL",
    )


def _trial_inputs(
    model: ModelFile, run: SourceRun, tp: int, inputs: Mapping[str, Array] | Path | None
) -> Iterator[tuple[str, dict[str, Array], Any]]:
    """(name, inputs, the source's run) of each trial the source can run; refuses (TP503) where it can run none."""
    if inputs is not None:
        feeds = read_inputs(inputs, model) if isinstance(inputs, Path) else dict(inputs)
        wanted = [("given", [feeds])]
    else:
        wanted = [
            (name, [default_inputs(model, s, tp) for s in (sizes, sizes.without_past_in_masks())])
            for name, sizes in TRIALS.items()
        ]
        sample = wanted[0][1]
        wanted.append(("flags off", [with_flags_off(feeds) for feeds in sample]))
        wanted.append(("negative ids", [with_negative_ids(model, feeds) for feeds in sample]))
    seen: list[dict[str, Array]] = []
    first: tuple[dict[str, Array], Exception | None] | None = None
    for name, candidates in wanted:
        failure: Exception | None = None
        for feeds in candidates:
            if any(all(np.array_equal(feeds[key], other[key]) for key in feeds) for other in seen):
                failure = None
                break
            try:
                result = run.run(feeds)
            except Exception as error:  # onnxruntime raises a dozen types of its own
                failure = failure or error
                continue
            seen.append(feeds)
            failure = None
            yield name, feeds, result
            break
        first = first or (candidates[0], failure)
    if not seen and first:
        fact = f"the source cannot run on {_described(first[0])}: {' '.join(str(first[1]).split())[:300]}"
        raise refuse("TP503", model.name, fact, "Give inputs that it can run with --inputs x.npz") from first[1]


def _described(feeds: Mapping[str, Array]) -> dict[str, str]:
    """What each input is, for people."""
    found = {}
    for name, array in feeds.items():
        numbers = array.astype(np.float64).reshape(-1)
        span = f" {numbers.min():.3g} … {numbers.max():.3g}" if numbers.size else ""
        found[name] = f"{array.dtype.name}{list(array.shape)}{span}"
    return found


def _run(
    bundle: Bundle,
    model: ModelFile,
    tiling: Tiling,
    inputs: Mapping[str, Array] | Path | None,
    layout: Check,
    numbers: Check,
    memory_bytes: int | None,
) -> Iterator[Trial]:
    """All trials; the layout is followed through the first, and through each that takes other branches."""
    source = SourceRun(model, memory_bytes)
    lockstep: Lockstep | None = None
    followed: set[frozenset[tuple[str, str]]] = set()
    for name, feeds, (want, limits) in _trial_inputs(model, source, bundle.tp, inputs):
        try:
            lockstep = lockstep or Lockstep(bundle, memory_bytes)
            trace = lockstep.run(feeds)
        except Refused as refused:
            numbers.faults.extend(refused.faults)
            layout.warnings.append("not followed: the ranks do not run")
            return
        way = frozenset(trace.taken.items())
        if way not in followed and not layout.faults:
            shapes = {key: np.shape(array) for key, array in want.items()}
            found = follow(bundle, tiling, trace, shapes)
            layout.faults.extend(found.faults)
            notes = [f"not decided: {text}" for text in found.undecided]
            layout.warnings.extend(note for note in notes if note not in layout.warnings)
            followed.add(way)
            saw = f"{found.operations - len(found.undecided)} of {found.operations} operations followed"
            layout.saw = f"{layout.saw}, {saw} in other branches" if layout.saw else saw
        yield _compared(bundle, source, name, feeds, trace, want, limits, numbers)
    layout.warnings.extend(_untaken(bundle, {choice for way in followed for choice in way}))
    numbers.saw = "every output and every value of the same name, against the source"


def _untaken(bundle: Bundle, taken: set[tuple[str, str]]) -> Iterator[str]:
    """Branches with collectives that no trial went into, though it came to their If."""
    for node in walk(bundle.ranks[0].graph):
        lacking = [side for side in SIDES if (node.output[0], side) not in taken] if is_joint(node) else []
        if len(lacking) == 1:
            yield f"not followed: no inputs led into the {lacking[0]} of If {node.name or node.output[0]}"


def _compared(
    bundle: Bundle,
    source: SourceRun,
    name: str,
    feeds: Mapping[str, Array],
    trace: Trace,
    want: Mapping[str, Array],
    limits: Mapping[str, float],
    numbers: Check,
) -> Trial:
    errors: dict[str, float] = {}
    faults = []
    for output in source.outputs:
        whole = whole_output(bundle, trace, output)
        errors[output] = float("inf") if isinstance(whole, str) else source.error(output, want[output], whole)
        if isinstance(whole, str):
            faults.append(Fault("TP531", f"output {output} ({name})", whole, REMEDY))
        elif errors[output] > limits[output]:
            faults.append(
                Fault(
                    "TP531",
                    f"output {output} ({name})",
                    f"relative error {errors[output]:.1e}, {limits[output]:.1e} allowed",
                    REMEDY,
                )
            )
    astray: list[Divergence] = list(divergences(bundle, source, trace, want, limits))
    first = next((found for found in astray if faults or found.declared), None)
    if first:
        kind = (
            "first value that departs from the source"
            if faults
            else "value that does not lie as the rank files declare"
        )
        faults.append(Fault("TP532", f"{first.value} ({name})", f"is the {kind}: {first}", REMEDY))
    if not numbers.faults:
        numbers.faults.extend(faults)
    return Trial(
        name,
        _described(feeds),
        errors,
        {output: limits[output] for output in source.outputs},
        str(first) if first else None,
    )


def memory_size(text: str) -> int:
    """Bytes of "8GB", "512 MB" or a number. Raises argparse's error for other texts."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(kB|MB|GB|TB)?\s*", text)
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it as 8GB or 512MB")
    return int(float(found[1]) * {None: 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}[found[2]])


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tpcompile verify` takes."""
    parser.add_argument("bundle", type=Path, help="the folder that tpcompile wrote")
    parser.add_argument(
        "--source", type=Path, help="the model it was made from (default: found in or beside the bundle)"
    )
    parser.add_argument(
        "--inputs", type=Path, help="inputs as an .npz file (default: made from names, types and shapes)"
    )
    parser.add_argument("--allow-links", action="store_true", help="follow links among the source's data files")
    parser.add_argument(
        "--memory", type=memory_size, metavar="8GB", help="hold about this much at once: part by part, slower"
    )
    parser.add_argument(
        "--layers", type=int, metavar="K", help="check weights, layout and numbers of the first K layers alone"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def verify_command(args: argparse.Namespace) -> int:
    """Run `tpcompile verify`; returns 0 where all is well and 3 where not. Raises what `verify_bundle` raises."""
    report = verify_bundle(args.bundle, args.source, args.inputs, args.allow_links, args.memory, args.layers)
    if args.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        print_report(report, Console(), Console(file=sys.stderr))
    return 0 if report.ok else NumbersDiffer.exit_code


def print_report(report: VerifyReport, console: Console, errors: Console) -> None:
    """Show a report: checks and trials on `console`, faults on `errors`."""
    if report.trials:
        console.print("Inputs", style="bold")
        for name, text in report.trials[0].inputs.items():
            console.print(f"  {name}  {text}", markup=False, highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("check", "", "what was seen"):
        table.add_column(column)
    for check in report.checks:
        table.add_row(check.name, "[red]wrong[/]" if check.faults else "[green]ok[/]", check.saw)
    console.print(table)
    trials = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("trial", "", "relative error", "allowed", "output"):
        trials.add_column(column)
    for trial in report.trials:
        name, error, limit = trial.worst
        trials.add_row(
            trial.name, "[green]ok[/]" if error <= limit else "[red]wrong[/]", f"{error:.1e}", f"{limit:.1e}", name
        )
    console.print(trials)
    for check in report.checks:
        for warning in check.warnings[:8]:
            console.print(f"note ({check.name}): {warning}", style="yellow", markup=False, highlight=False)
        if len(check.warnings) > 8:
            console.print(f"note ({check.name}): and {len(check.warnings) - 8} more", style="yellow")
    for fault in report.faults:
        errors.print(str(fault), style="red", markup=False, highlight=False)
    console.print(
        "The bundle gives the source's numbers." if report.ok else f"{len(report.faults)} faults.", style="bold"
    )
