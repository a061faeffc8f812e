"""The command line: `tpcompile MODEL --tp N`, and plan, verify, run, triton, inspect, diff, doctor, recipes."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any

from tpcompile import __version__
from tpcompile.arguments import COMMANDS, command_parser, engine_wishes, model_wishes, torch_command
from tpcompile.errors import TpcompileError

INTERRUPTED = 130
OUR_FAULT = 1
RUN_PACKAGES = ("onnxruntime", "mpi4py")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 done, 1 our own fault, 2 refused, 3 numbers differ, 4 a rank failed, 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words and words[0] in COMMANDS else "compile"
    before = _end_as_if_interrupted()
    try:
        arguments = command_parser(command).parse_args(words[1:] if command != "compile" else words)
        return _run(command, arguments)
    except TpcompileError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as ending:
        return int(ending.code or 0)
    except BrokenPipeError:
        return 0
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in RUN_PACKAGES:
            print(f"TP603 {error.name}: it is not installed. Run `pip install 'tpcompile[run]'`", file=sys.stderr)
            return 2
        traceback.print_exc()  # the last resort: say that it is ours, and what helps us
        print(
            f"TP999 this is a fault of tpcompile {__version__}. Please report the lines above, with the command and, "
            "if you can, the model",
            file=sys.stderr,
        )
        return OUR_FAULT
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler or signal.SIG_DFL)


def _end_as_if_interrupted() -> dict[signal.Signals, Any]:
    """Let SIGTERM and SIGHUP end us as Ctrl-C does: nothing half-written, no rank stays. Returns the old handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    return {kind: signal.signal(kind, interrupt) for kind in (signal.SIGTERM, signal.SIGHUP)}


def _run(command: str, arguments: argparse.Namespace) -> int:
    if command == "verify":
        from tpcompile.verify.command import verify_command

        return verify_command(arguments)
    if command == "run":
        from tpcompile.run.launch import run_command

        return run_command(arguments)
    if command == "triton":
        from tpcompile.targets.triton import triton_command

        return triton_command(arguments)
    if command == "inspect":
        from tpcompile.verify.inspect import inspect_command

        return inspect_command(arguments)
    if command == "diff":
        from tpcompile.verify.diff import diff_command

        return diff_command(arguments)
    if command == "check-annotations":
        from tpcompile.annotation_report import check_command

        return check_command(arguments)
    if command == "doctor":
        from tpcompile.run.doctor import doctor_command

        return doctor_command(arguments)
    if command == "recipes":
        from tpcompile.show_recipes import recipes_command

        return recipes_command(arguments)
    if command == "plan":
        from tpcompile.plan_command import plan_command

        return plan_command(arguments)
    from tpcompile import api
    from tpcompile.report import Progress, bundle_json, print_bundle

    if command == "engine":
        from tpcompile.plan.request import read_sizes

        with Progress() as progress:
            bundle = api.load(arguments.bundle).build_engines(
                sizes=read_sizes(arguments.sizes), progress=progress, **engine_wishes(arguments)
            )
        print(json.dumps(bundle_json(bundle), indent=1)) if arguments.json else print_bundle(bundle)
        return 0
    with Progress() as progress:
        if arguments.target == "torch":
            bundle = torch_command().compile_bundle(arguments, model_wishes(arguments), progress)
        else:
            bundle = api.compile(
                arguments.model,
                arguments.tp,
                arguments.out,
                force=arguments.force,
                verify=arguments.verify,
                hash_data=arguments.hash,
                reduce_dtype=arguments.reduce_dtype,
                dialect=arguments.dialect,
                triton=arguments.triton,
                progress=progress,
                **model_wishes(arguments),
                **engine_wishes(arguments),
            )
    if arguments.json:
        print(json.dumps(bundle_json(bundle), indent=1))
    else:
        print_bundle(bundle)
    return 0


if __name__ == "__main__":
    sys.exit(main())
