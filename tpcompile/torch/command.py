"""`tpcompile MODEL.pt2 --tp N --target torch` and its plan."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tpcompile.api import Bundle
from tpcompile.bundle.manifest import Manifest
from tpcompile.bundle.write import check_target
from tpcompile.errors import Fault, raise_all
from tpcompile.passes.compilation import Compilation
from tpcompile.plan_summary import summarize
from tpcompile.torch.programs import parallelize, planned

OF_ONNX = {
    "verify": "--verify", "hash": "--hash", "engine": "--engine", "profile": "--profile", "triton": "--triton",
    "collective_boundary": "--collective-boundary", "annotate": "--annotate", "allow_links": "--allow-links",
    "export_tp_plan": "--export-tp-plan",
}  # fmt: skip
"""Options that say something of ONNX files alone."""


def compile_bundle(arguments: argparse.Namespace, wishes: Mapping[str, Any], progress: Callable[..., None]) -> Bundle:
    """Write the bundle that the command line asks for.

    Raises:
        Refused: TP724 for options that concern ONNX files, and what `parallelize` and `save` refuse.
    """
    check_options(arguments)
    model = Path(arguments.model)
    out = arguments.out or model.parent / f"{model.stem}.tp{arguments.tp}"
    check_target(out, arguments.force)
    made = parallelize(model, tp=arguments.tp, training=arguments.training, reduce_dtype=arguments.reduce_dtype,
                       **_own(wishes))  # fmt: skip
    made.save(out, force=arguments.force, progress=lambda done, total: progress("write weights", done, total))
    manifest = Manifest.read(out, of_torch=True)
    return Bundle(out, manifest, made.plan, summarize(made.work), made.warnings)


def plan(arguments: argparse.Namespace, wishes: Mapping[str, Any]) -> Compilation:
    """Plan for the first degree that the command line names. Raises as `compile_bundle`."""
    check_options(arguments)
    return planned(Path(arguments.model), tp=arguments.tp[0], training=arguments.training, **_own(wishes))


def _own(wishes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in wishes.items() if name not in ("allow_links", "annotate", "annotations")}


def check_options(arguments: argparse.Namespace) -> None:
    """Refuse (TP724) options that would change nothing."""
    idle = [option for name, option in OF_ONNX.items() if getattr(arguments, name, None)]
    if getattr(arguments, "dialect", "tensorrt") != "tensorrt":
        idle.append("--dialect")
    fact, remedy = "it concerns ONNX files, and programs of torch are asked for", "Leave out one of the two"
    raise_all([Fault("TP724", option, fact, remedy) for option in idle])
