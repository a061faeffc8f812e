"""The arguments of every command, and what they come to as arguments of the Python API."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from tpcompile import __version__
from tpcompile.errors import refuse

COMMANDS = ("plan", "verify", "engine", "run", "triton", "inspect", "diff", "doctor", "check-annotations", "recipes")


class Parser(argparse.ArgumentParser):
    """argparse with refusals in the form of all others: a code, and what would work."""

    def error(self, message: str) -> NoReturn:
        print(f"TP100 {self.prog}: {message}. Run `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)


def command_parser(command: str) -> argparse.ArgumentParser:
    prog = "tpcompile" if command == "compile" else f"tpcompile {command}"
    parser = Parser(prog=prog, description=_DESCRIPTIONS[command], formatter_class=argparse.RawDescriptionHelpFormatter)
    if command == "compile":
        parser.add_argument("--version", action="version", version=f"tpcompile {__version__}")
        add_model_arguments(parser)
        parser.add_argument(
            "-o", dest="out", type=Path, metavar="DIR", help="the folder to write (default: MODEL.tpN beside the model)"
        )
        parser.add_argument("--force", action="store_true", help="replace a bundle that is there")
        parser.add_argument(
            "--verify", action="store_true", help="prove the result against the source before it appears"
        )
        parser.add_argument(
            "--reduce-dtype",
            metavar="float32|model",
            help="how ranks sum float16 and bfloat16: in float32 (default), or as they are, which sends half the bytes",
        )
        parser.add_argument(
            "--dialect",
            default="tensorrt",
            metavar="tensorrt|onnxruntime",
            help="whose collectives the files hold: DistCollective (default), or ONNX Runtime's own",
        )
        parser.add_argument("--hash", action="store_true", help="add sha256 of the weight files to bundle.json")
        add_engine_arguments(parser, required=False)
        parser.add_argument(
            "--triton",
            type=Path,
            metavar="DIR",
            help="write the engines into a model repository for Triton's multi-device mode, too",
        )
    elif command == "plan":
        add_model_arguments(parser, several=True)
        parser.add_argument(
            "--export-tp-plan",
            type=Path,
            metavar="FILE.json",
            help="write the plan as a tp_plan of Hugging Face",
        )
        parser.add_argument("--why", metavar="GLOB", help="why these weights or dimensions are cut, or are not")
        parser.add_argument(
            "--report", type=Path, metavar="FILE.html", help="write the plan as a page for browsers, too"
        )
        parser.add_argument(
            "--write-plan", type=Path, metavar="FILE.toml", help="write plan.toml there, to edit and give to --plan"
        )
    elif command == "verify":
        from tpcompile.verify.command import add_verify_arguments

        add_verify_arguments(parser)
    elif command == "engine":
        parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the folder that tpcompile wrote")
        parser.add_argument("--sizes", default="", metavar="batch=1,…", help="the usual sizes, which profiles follow")
        add_engine_arguments(parser, required=True)
        parser.add_argument("--json", action="store_true", help="print JSON for machines")
    elif command == "run":
        from tpcompile.run.launch import add_launch_arguments

        add_launch_arguments(parser)
    elif command == "triton":
        from tpcompile.targets.triton import add_triton_arguments

        add_triton_arguments(parser)
    elif command == "inspect":
        from tpcompile.verify.inspect import add_inspect_arguments

        add_inspect_arguments(parser)
    elif command == "diff":
        from tpcompile.verify.diff import add_diff_arguments

        add_diff_arguments(parser)
    elif command == "check-annotations":
        from tpcompile.annotation_report import add_check_arguments

        add_check_arguments(parser)
    elif command == "recipes":
        from tpcompile.show_recipes import add_recipes_arguments

        add_recipes_arguments(parser)
    return parser


_DESCRIPTIONS = {
    "compile": "Compile a model for N ranks by tensor parallelism: one ONNX file per rank, collectives inside.\n\n"
    "  tpcompile model.onnx --tp 4            writes model.tp4/\n"
    "  tpcompile run model.tp4 --inputs x.npz runs it here; mpirun -n 4 tprun model.tp4 does the same\n\n"
    "other commands (see --help of each): plan | recipes | verify | engine | run | triton | inspect | diff | doctor |\n"
    "check-annotations",
    "plan": "Show what would be cut, what that saves and costs, and why the rest stays whole; needs no weights.",
    "verify": "Hold a bundle against the model it was made from.",
    "engine": "Build a TensorRT engine for each rank of a bundle.",
    "run": "Run a bundle on this machine: starts mpirun with all its ranks.",
    "triton": "Write a model repository for Triton Inference Server.",
    "inspect": "Show what a bundle holds: ranks, inputs, outputs, weights, collectives.",
    "diff": "Compare values that `tprun --dump GLOB` wrote with those of another run, and name the first that departs.",
    "check-annotations": "Check a model's own sharding annotations: what is wrong with them, what a runtime must send.",
    "recipes": "List the recipes for --recipe, or show the file of one.",
    "doctor": "Check what running a bundle needs: MPI, ONNX Runtime, a bare AllReduce.",
}


def _degrees(text: str) -> list[int]:
    """ "1,2,4" as numbers of ranks."""
    if not all(part.isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"'{text}' is no list of numbers of ranks, such as 1,2,4")
    return [int(part) for part in text.split(",")]


def _target(text: str) -> str:
    if text not in ("onnx", "torch"):
        raise argparse.ArgumentTypeError(f"'{text}' is neither onnx nor torch")
    return text


def add_model_arguments(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """The arguments that compile and plan share; `several` degrees may be compared."""
    from tpcompile.plan.topology import DEFAULT

    parser.add_argument("model", type=Path, metavar="MODEL", help="an ONNX file, or a .pt2 of torch.export")
    parser.add_argument(
        "--target",
        default="onnx",
        type=_target,
        metavar="onnx|torch",
        help="what a .pt2 becomes: ONNX files, through torch's exporter (default), or programs of torch",
    )
    parser.add_argument(
        "--training", action="store_true", help="with --target torch: programs whose gradients are right, to train"
    )
    degree = "degree of tensor parallelism: how many ranks"
    if several:
        parser.add_argument(
            "--tp", type=_degrees, required=True, metavar="N[,N…]", help=f"{degree}; several are compared"
        )
    else:
        parser.add_argument("--tp", type=int, required=True, metavar="N", help=degree)
    parser.add_argument(
        "--recipe",
        metavar="NAME|FILE",
        help="a named set of wishes (see `tpcompile recipes`); other options win over it",
    )
    parser.add_argument(
        "--tp-plan",
        type=Path,
        metavar="FILE",
        help="follow Hugging Face's tp_plan: a config.json, or a JSON dictionary",
    )
    parser.add_argument(
        "--objective",
        metavar="balanced|memory|latency",
        help="what a plan is best at (default: balanced)",
    )
    parser.add_argument(
        "--topology",
        default=DEFAULT,
        metavar="NAME|FILE",
        help=f"the machine that times are told for, and that `latency` plans for (default: {DEFAULT})",
    )
    parser.add_argument("--memory-per-rank", metavar="24GB", help="what weights, caches and activations may take")
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="GLOB=KIND",
        help="how weights lie, by name: column, row, vocab, expert, cut, whole or gather; dimensions ('up*[1]'): cut "
        "or whole",
    )
    parser.add_argument(
        "--forbid",
        action="append",
        default=[],
        metavar="GLOB[=KIND]",
        help="weights or dimensions that are not to be cut, or not so: column, row, vocab or expert",
    )
    parser.add_argument(
        "--outputs",
        metavar="whole|shard",
        help="gather outputs (default), or leave them cut where they are",
    )
    parser.add_argument(
        "--sizes",
        default="",
        metavar="batch=1,…",
        help="sizes that costs are computed at (default: batch=1,seq=1,past=2048)",
    )
    parser.add_argument("--plan", type=Path, metavar="FILE", help="follow this plan.toml")
    parser.add_argument(
        "--state", action="append", default=[], metavar="IN=OUT", help="a cache: input and the output that replaces it"
    )
    parser.add_argument(
        "--role",
        action="append",
        default=[],
        metavar="ROLE=NAME",
        help="what an input or output is: tokens, mask, positions, logits",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse where something would run whole for want of a rule, or nothing is cut",
    )
    parser.add_argument("--allow-links", action="store_true", help="follow links among the model's data files")
    parser.add_argument(
        "--annotate", type=Path, metavar="FILE", help="write the model there, with the plan as ONNX's own annotations"
    )
    parser.add_argument(
        "--annotations",
        default="follow",
        metavar="follow|ignore",
        help="what to do with a model's own annotations (default: follow what they say of weights)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON for machines")


def add_engine_arguments(parser: argparse.ArgumentParser, required: bool) -> None:
    """The arguments that say which engines to build."""
    parser.add_argument(
        "--engine",
        required=required,
        metavar="tensorrt-rtx|tensorrt",
        help="build an engine per rank with this library",
    )
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="NAME=min:opt:max",
        help="shapes of an input, such as input_ids=1x1:1x16:4x512; those of others follow. A name that comes again "
        "begins another profile",
    )
    parser.add_argument("--collective-boundary", action="store_true", help="let nothing be fused across a collective")
    parser.add_argument(
        "--engine-timeout", type=float, metavar="SECONDS", help="how long one engine may take (default: 3600)"
    )


def engine_wishes(arguments: argparse.Namespace) -> dict[str, Any]:
    from tpcompile.api import ENGINE_TIMEOUT_S
    from tpcompile.targets.profiles import read_profiles

    return {
        "engine": arguments.engine, "profiles": read_profiles(arguments.profile),
        "collective_boundary": arguments.collective_boundary,
        "engine_timeout_s": ENGINE_TIMEOUT_S if arguments.engine_timeout is None else arguments.engine_timeout,
    }  # fmt: skip


def model_wishes(arguments: argparse.Namespace) -> dict[str, Any]:
    from tpcompile.plan.request import read_bytes, read_forbid, read_pairs, read_sizes

    most = arguments.memory_per_rank
    pins = [(pattern, kind) for text in arguments.pin for pattern, kind in read_pairs("--pin", [text]).items()]
    return {
        "recipe": arguments.recipe, "tp_plan": arguments.tp_plan,
        "objective": arguments.objective, "pins": pins,
        "forbids": [read_forbid(text) for text in arguments.forbid], "outputs": arguments.outputs,
        "sizes": read_sizes(arguments.sizes), "plan": arguments.plan, "strict": arguments.strict,
        "state": read_pairs("--state", arguments.state), "roles": read_pairs("--role", arguments.role),
        "allow_links": arguments.allow_links, "topology": arguments.topology,
        "annotations": arguments.annotations, "annotate": arguments.annotate,
        "memory_per_rank": None if most is None else read_bytes("--memory-per-rank", most),
    }  # fmt: skip


def torch_command() -> Any:
    """What serves `--target torch`; raises Refused TP702 where torch is not installed."""
    try:
        from tpcompile.torch import command
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        remedy = "Run `pip install 'tpcompile[torch]'`"
        raise refuse("TP702", "--target torch", "torch is not installed", remedy) from error
    return command
