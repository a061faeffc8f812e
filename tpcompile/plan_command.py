"""`tpcompile plan`: plan, show it, and write what is asked for; no weights are needed and no bundle is made."""

from __future__ import annotations

import argparse
import json

from tpcompile import api
from tpcompile.arguments import model_wishes, torch_command
from tpcompile.errors import refuse
from tpcompile.one_file import check_places, write_whole
from tpcompile.pipeline import replanned
from tpcompile.plan.planfile import plan_toml
from tpcompile.plan.tp_plan_export import export_tp_plan
from tpcompile.plan_report import plan_json, print_comparison, print_plan
from tpcompile.plan_summary import summarize
from tpcompile.report import Progress
from tpcompile.report_page.page import report_page
from tpcompile.why_report import print_why, why, why_json


def plan_command(arguments: argparse.Namespace) -> int:
    """Plan one degree, or several beside each other, and return the exit code."""
    wanted = {
        "--report": arguments.report,
        "--write-plan": arguments.write_plan,
        "--export-tp-plan": arguments.export_tp_plan,
    }
    check_places(wanted, len(arguments.tp))
    if arguments.annotate is not None and len(arguments.tp) > 1:
        fact = "it holds one plan, and --tp asks for several"
        raise refuse("TP160", f"--annotate {arguments.annotate}", fact, "Give one --tp")
    with Progress() as progress:
        if arguments.target == "torch":
            work = torch_command().plan(arguments, model_wishes(arguments))
        else:
            work = api.plan(arguments.model, arguments.tp[0], progress=progress, **model_wishes(arguments))
        works = [work, *(replanned(work, tp) for tp in arguments.tp[1:])]
    asked = [] if arguments.why is None else [why(each, arguments.why) for each in works]  # before anything is written
    if len(works) > 1 and asked:
        if arguments.json:
            print(json.dumps([why_json(*each) for each in zip(works, asked, strict=True)], indent=1))
        else:
            for each in zip(works, asked, strict=True):
                print_why(*each)
        return 0
    if len(works) > 1:
        shown = [plan_json(summarize(each), each) for each in works] if arguments.json else []
        print(json.dumps(shown, indent=1)) if arguments.json else print_comparison(works)
        return 0
    styles: dict[str, str] = {}
    if arguments.export_tp_plan is not None:
        styles, unsaid = export_tp_plan(work.analysis, work.problem, work.plan.cut)
        work.warnings += unsaid
    told = summarize(work)
    if arguments.export_tp_plan is not None:
        write_whole("--export-tp-plan", arguments.export_tp_plan, json.dumps(styles, indent=2) + "\n")
    if arguments.report is not None:
        write_whole("--report", arguments.report, report_page(told))
    if arguments.write_plan is not None:
        write_whole("--write-plan", arguments.write_plan, plan_toml(work.plan, told))
    if asked:
        print(json.dumps(why_json(work, asked[0]), indent=1)) if arguments.json else print_why(work, asked[0])
        return 0
    print(json.dumps(plan_json(told, work), indent=1)) if arguments.json else print_plan(told)
    return 0
