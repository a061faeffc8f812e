"""What a user may call from Python: compile, plan, verify, load."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from tpcompile import pipeline
from tpcompile.annotations.check import Checked, check
from tpcompile.annotations.save import check_annotate, save
from tpcompile.annotations.write import annotate as write_annotations
from tpcompile.bundle.manifest import Manifest
from tpcompile.bundle.write import BundleFolder, check_target, locked
from tpcompile.errors import NumbersDiffer, refuse
from tpcompile.graph.doors import open_model, to_kind
from tpcompile.graph.read import SourceModel
from tpcompile.output import write_bundle
from tpcompile.passes.compilation import Compilation
from tpcompile.plan.make_request import make_request
from tpcompile.plan.plan import Plan
from tpcompile.plan.request import Request
from tpcompile.plan.summary import PlanSummary
from tpcompile.plan.topology import DEFAULT as DEFAULT_TOPOLOGY
from tpcompile.plan_summary import summarize
from tpcompile.weights.source import FileBytes

if TYPE_CHECKING:
    from tpcompile.run.session import InferenceSession
    from tpcompile.targets.engines import BuildRequest
    from tpcompile.verify.command import VerifyReport

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is (bytes or steps)."""

ENGINE_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Bundle:
    """A compiled model: the folder, its manifest, and (right after compiling) the plan and what is told of it."""

    folder: Path
    manifest: Manifest = field(repr=False)
    plan: Plan | None = field(default=None, repr=False)
    summary: PlanSummary | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()
    report: VerifyReport | None = field(default=None, repr=False)

    def rank_model(self, rank: int, kind: str = "onnx") -> Any:
        """The model of one rank as "onnx" (ModelProto), "ir" (onnx_ir.Model) or "gs" (onnx_graphsurgeon.Graph).

        Its weights stay in the bundle's files, except for "gs", which loads them.
        """
        entry = next((entry for entry in self.manifest.ranks if entry.rank == rank), None)
        if entry is None:
            raise refuse(
                "TP108",
                f"rank {rank}",
                f"the bundle has ranks 0 to {len(self.manifest.ranks) - 1}",
                "Ask for one of them",
            )
        proto = onnx.load(self.folder / entry.model, load_external_data=False)
        return to_kind(proto, kind, self.folder)  # type: ignore[arg-type]

    def build_engines(
        self,
        engine: str,
        *,
        sizes: Mapping[str, int] | None = None,
        profiles: Any = None,
        collective_boundary: bool = False,
        engine_timeout_s: float = ENGINE_TIMEOUT_S,
        progress: Progress | None = None,
    ) -> Bundle:
        """Build an engine per rank into the bundle, in place of those of the same library; arguments as for `compile`.

        Raises:
            Refused: TP704 to TP713. The bundle then is as it was.
        """
        from tpcompile.targets.engines import build_engines

        request = _engine_request(engine, sizes, profiles, collective_boundary, engine_timeout_s)
        with locked(self.folder) as alone:
            if not alone:
                fact = "another process builds or replaces something in it"
                raise refuse("TP713", str(self.folder), fact, "Wait until it is done")
            made = build_engines(self.folder, Manifest.read(self.folder), request, progress)
        return replace(self, manifest=made.manifest, warnings=(*self.warnings, *made.notes))

    def session(self, **options: Any) -> InferenceSession:
        """A session that runs the bundle (see `InferenceSession`)."""
        from tpcompile.run.session import InferenceSession

        return InferenceSession(self.folder, **options)


def compile(
    model: Any,
    tp: int,
    out: str | Path | None = None,
    *,
    force: bool = False,
    verify: bool = False,
    strict: bool = False,
    recipe: str | Path | None = None,
    tp_plan: str | Path | Mapping[str, str] | None = None,
    objective: str | None = None,
    pins: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    forbids: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    outputs: str | None = None,
    sizes: Mapping[str, int] | None = None,
    topology: str = DEFAULT_TOPOLOGY,
    memory_per_rank: int | None = None,
    plan: str | Path | None = None,
    state: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
    reduce_dtype: str | None = None,
    dialect: str = "tensorrt",
    allow_links: bool = False,
    hash_data: bool = False,
    example_inputs: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic: Any = None,
    engine: str | None = None,
    profiles: Any = None,
    collective_boundary: bool = False,
    engine_timeout_s: float = ENGINE_TIMEOUT_S,
    triton: str | Path | None = None,
    annotations: str = "follow",
    annotate: str | Path | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Compile a model for `tp` ranks into a folder.

    Args:
        model: path of an ONNX file, `onnx.ModelProto`, `onnx_ir.Model`, `onnx_graphsurgeon.Graph`, `torch.nn.Module`
            (with `example_inputs`) or `torch.export.ExportedProgram`.
        tp: degree of tensor parallelism: the number of ranks.
        out: the folder to write, by default MODEL.tpN beside the model (`model.tpN` here for a model in memory).
        force: replace a bundle that is there.
        verify: prove the result against the source before it appears; a bundle that fails is kept as OUT.failed.
        strict: refuse where something would run whole for want of a rule, or nothing is cut.
        recipe: a named set of wishes (`tpcompile recipes`), or the TOML file of one. What is given here wins over it.
        tp_plan: how Hugging Face's transformers cut the model: module → style, a JSON file of that, or a config.json.
        objective: "balanced" (the default), "memory" or "latency".
        pins: name pattern → column, row, vocab, expert, cut, whole or gather, for weights ("*.up"), and cut or whole
            for dimensions ("*.up[1]").
        forbids: the same → column, row, vocab, expert, or "" for any cut: how not to cut them.
        outputs: "whole" (the default), or "shard" to leave outputs cut.
        sizes: sizes of symbols that costs are computed at, such as {"batch": 1, "past": 2048}.
        topology: the machine that "latency" plans for: a name that comes along, or a TOML file.
        memory_per_rank: bytes that a rank may hold; the plan keeps to it.
        plan: a plan.toml to follow.
        state: cache input → the output that replaces it.
        roles: role (tokens, mask, positions, logits) → input or output.
        reduce_dtype: "float32" (the default) to sum float16 and bfloat16 in float32, or "model" to sum them as they
            are: half the bytes, about ten times the rounding.
        dialect: "tensorrt", or "onnxruntime" for the collectives of its CUDA builds with NCCL.
        allow_links: follow links among the model's data files.
        hash_data: add sha256 of weight files to the manifest.
        example_inputs, input_names, output_names, dynamic: for torch models, as `torch.onnx.export` takes them.
        engine: "tensorrt-rtx" or "tensorrt" to build an engine per rank too.
        profiles: shapes that engines are for: input → (min, opt, max), or a sequence of such mappings. Other inputs
            follow; all do from `sizes` where nothing is given.
        collective_boundary: let engines fuse nothing across a collective.
        engine_timeout_s: how long the engine of a rank may take.
        triton: a model repository to write the engines into, for Triton's multi-device mode.
        annotations: "follow" what the model's own sharding annotations say of its weights, or "ignore" them.
        annotate: a file beside the model to write it to, with the plan as ONNX's annotations.
        progress: told of work under way.

    Raises:
        Refused: the model or a wish cannot be served. NumbersDiffer: `verify` found another result than the source's.
    """
    request = make_request(
        tp, objective, pins, outputs, sizes, plan, state, roles, strict, topology, memory_per_rank, recipe,
        tp_plan, forbids, reduce_dtype, dialect=dialect, annotations=annotations,
    )  # fmt: skip
    engines = None
    if triton is not None:
        from tpcompile.targets.triton import check_engine

        check_engine(Path(triton), engine)
    if engine is not None:
        from tpcompile.targets.engines import require_dialect

        require_dialect(dialect)
        engines = _engine_request(engine, sizes, profiles, collective_boundary, engine_timeout_s)
    elif profiles or collective_boundary:
        given = "--profile" if profiles else "--collective-boundary"
        raise refuse("TP119", given, "it concerns engines, and none is to be built", "Add --engine, or leave it out")
    target = Path(out) if out is not None else _default_target(model, tp)
    check_target(target, force)
    source = open_model(
        model,
        allow_links=allow_links,
        example_inputs=example_inputs,
        input_names=input_names,
        output_names=output_names,
        dynamic=dynamic,
    )
    _keep_source(source, target)
    if annotate is not None:
        check_annotate(Path(annotate), source, force)
    work = _through(source, request, pipeline.PLANNING + pipeline.REWRITING, progress)
    summary = summarize(work)
    report = None
    writing = BundleFolder(target, force)
    with writing as folder:
        manifest = write_bundle(
            work,
            folder,
            summary,
            None if progress is None else lambda done, total: progress("write weights", done, total),
            hash_data=hash_data,
        )
        if verify:
            from tpcompile.verify.command import verify_bundle

            if progress is not None:
                progress("verify", 0, 1)
            report = verify_bundle(folder, source, None, allow_links)
            if not report.ok:
                writing.keep_failed = True
                raise NumbersDiffer(*report.faults)
        notes = tuple(work.warnings)
        if triton is not None:
            from tpcompile.targets.triton import check_backend

            check_backend(manifest)
        if engines is not None:
            from tpcompile.targets.engines import build_engines

            made = build_engines(folder, manifest, engines, progress)
            manifest, notes = made.manifest, (*notes, *made.notes)
    if annotate is not None:
        notes = (*notes, *_annotate(work, Path(annotate)))
    if triton is not None:
        from tpcompile.targets.triton import write_repository

        write_repository(target, Path(triton), force=force)
    return Bundle(target, manifest, work.plan, summary, notes, report)


def plan(
    model: Any,
    tp: int,
    *,
    recipe: str | Path | None = None,
    tp_plan: str | Path | Mapping[str, str] | None = None,
    objective: str | None = None,
    pins: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    forbids: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    sizes: Mapping[str, int] | None = None,
    topology: str = DEFAULT_TOPOLOGY,
    memory_per_rank: int | None = None,
    outputs: str | None = None,
    plan: str | Path | None = None,
    state: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
    strict: bool = False,
    allow_links: bool = False,
    example_inputs: Any = None,
    annotations: str = "follow",
    annotate: str | Path | None = None,
    progress: Progress | None = None,
) -> Compilation:
    """Plan without writing anything; the model's weights need not be there. Arguments as for `compile`."""
    request = make_request(
        tp, objective, pins, outputs, sizes, plan, state, roles, strict, topology, memory_per_rank, recipe,
        tp_plan, forbids, annotations=annotations,
    )  # fmt: skip
    source = open_model(model, allow_links=allow_links, require_data=False, example_inputs=example_inputs)
    if annotate is not None:
        check_annotate(Path(annotate), source, force=False)
    work = _through(source, request, pipeline.PLANNING, progress)
    if annotate is not None:
        work.warnings += _annotate(work, Path(annotate))
    return work


def _annotate(work: Compilation, out: Path) -> list[str]:
    """Write the model with the plan as annotations; what is worth telling of that."""
    annotated = write_annotations(work.source.proto, work.analysis, work.plan.cut, work.cut_doors)
    save(annotated, out)
    return [f"{out.name}: {note}" for note in annotated.notes()]


def check_annotations(model: Any, *, allow_links: bool = False) -> list[Checked]:
    """Check a model's own sharding annotations, whoever wrote them; its weights need not be there.

    Raises:
        Refused: TP174 where it has none, TP165 where its configurations are not sound. Other faults are in the result.
    """
    source = open_model(model, allow_links=allow_links, require_data=False)
    work = pipeline.run(pipeline.start(source, Request()), pipeline.SHAPES)
    return check(source.proto, work.program, source.file)


def load(folder: str | Path) -> Bundle:
    """Open a bundle that was compiled before.

    Raises:
        Refused: TP45x where it is none, or is damaged.
    """
    return Bundle(Path(folder), Manifest.read(folder))


def verify(bundle: str | Path | Bundle, source: Any = None, inputs: Mapping[str, Any] | None = None) -> VerifyReport:
    """Hold a bundle against the model it was made from; the report says whether it gives the same numbers."""
    from tpcompile.verify.command import verify_bundle

    folder = bundle.folder if isinstance(bundle, Bundle) else Path(bundle)
    return verify_bundle(folder, source, inputs)


def _engine_request(
    engine: str, sizes: Mapping[str, int] | None, profiles: Any, boundary: bool, timeout_s: float
) -> BuildRequest:
    """What engines to build. Refuses at once a library that is not there (TP704, TP705)."""
    from tpcompile.targets.engines import BuildRequest
    from tpcompile.targets.profiles import Wishes, as_profiles
    from tpcompile.targets.tensorrt import find_library

    wishes = Wishes(dict(sizes or {}), as_profiles(profiles))
    return BuildRequest(find_library(engine), wishes, boundary, timeout_s)


def _through(source: SourceModel, request: Request, passes: tuple[Any, ...], progress: Progress | None) -> Compilation:
    work = pipeline.start(source, request)
    done = 0

    def between(name: str, did: str, seconds: float) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(name, done, len(passes))

    return pipeline.run(work, passes, between)


def _default_target(model: Any, tp: int) -> Path:
    """MODEL.tpN beside the model's file; in this folder for what has no file name."""
    path = Path(model) if isinstance(model, str | Path) else Path("model")
    return path.parent / f"{path.stem or 'model'}.tp{tp}"


def _keep_source(source: SourceModel, target: Path) -> None:
    """Refuse to write where the source's own files lie: --force would delete them."""
    files = {found.path for found in source.places.values() if isinstance(found, FileBytes)}
    if source.folder is not None:
        files.add(source.folder / source.file)
    inside = target.absolute()
    for file in files:
        with contextlib.suppress(ValueError):
            file.absolute().relative_to(inside)
            raise refuse(
                "TP109", str(target), f"the source's own file {file.name} lies in it", "Choose another output with -o"
            )
