"""Write a bundle: weights streamed by byte ranges, one model per rank, the manifest, the plan and its report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tpcompile import __version__
from tpcompile.bundle.manifest import (
    CollectiveEntry,
    DataFile,
    IOEntry,
    Manifest,
    Mesh,
    Placement,
    RankEntry,
    SourceFile,
    StatePair,
)
from tpcompile.bundle.write import require_space
from tpcompile.graph.local import CollectiveCall, LocalWeight
from tpcompile.graph.program import Value
from tpcompile.graph.read import SourceModel
from tpcompile.graph.to_onnx import INLINE_BYTES, declared_shape, inline_bytes, rank_model
from tpcompile.passes.compilation import Compilation
from tpcompile.plan.planfile import plan_toml
from tpcompile.plan.summary import PlanSummary
from tpcompile.plan.uses import item_bytes
from tpcompile.report_page.page import report_page
from tpcompile.targets.onnxruntime_dialect import Sent, translate
from tpcompile.verify.files import open_source
from tpcompile.verify.inputs import symbol_kinds
from tpcompile.weights.checksum import edge_checksum
from tpcompile.weights.layout import Location, WeightJob, stored_bytes
from tpcompile.weights.source import FileBytes
from tpcompile.weights.writer import write_weights

SHARED_FILE = "shared.bin"
PLAN_FILE = "plan.toml"
REPORT_FILE = "report.html"


def write_bundle(
    work: Compilation,
    folder: Path,
    told: PlanSummary,
    progress: Callable[[int, int], None] | None = None,
    *,
    hash_data: bool = False,
) -> Manifest:
    """Write all files of a bundle into an empty folder.

    Raises:
        Refused: TP40x where weights cannot be read or written.
    """
    local, tp = work.local, work.request.tp
    small = {weight.name: _small(weight) for weight in local.weights if _nbytes(weight) < INLINE_BYTES}
    jobs = [
        WeightJob(w.name, w.weight.dtype, w.weight.shape, w.weight.source, w.parts, w.zeroed)
        for w in local.weights
        if w.name not in small
    ]
    require_space(folder, stored_bytes(jobs, tp))
    rank_files = [f"rank{rank}.bin" for rank in range(tp)]
    places = write_weights(jobs, folder, rank_files, SHARED_FILE, progress)
    by_name = {weight.name: weight for weight in local.weights}
    ranks = []
    sent: dict[str, Sent] = {}
    digests: dict[str, str] = {}
    for rank in range(tp):
        mine: dict[str, tuple[Location, str]] = {}
        for name, each in places.items():
            place = each[rank]
            if place is not None:
                mine[name] = (place, edge_checksum(folder / place.file, place.offset, place.length))
        inline = {name: inline_bytes(by_name[name], data, rank) for name, data in small.items()}
        model = rank_model(work.source.proto, work.program, local, rank, mine, inline)
        if work.request.dialect == "onnxruntime":
            sent = translate(model, tp)
        content = model.SerializeToString(deterministic=True)
        name = f"model_tp{tp}_rank{rank}.onnx"
        (folder / name).write_bytes(content)
        files = sorted({place.file for place, _ in mine.values()})
        for file in files:
            if hash_data and file not in digests:
                digests[file] = _sha256(folder / file)
        data = tuple(DataFile(file, (folder / file).stat().st_size, digests.get(file, "")) for file in files)
        ranks.append(RankEntry(rank, rank, 0, name, hashlib.sha256(content).hexdigest(), data))
    (folder / PLAN_FILE).write_text(plan_toml(work.plan, told), encoding="utf-8")
    (folder / REPORT_FILE).write_text(report_page(told), encoding="utf-8")
    manifest = make_manifest(work, tuple(ranks), sent)
    manifest.write(folder)
    return manifest


def make_manifest(work: Compilation, ranks: tuple[RankEntry, ...], sent: Mapping[str, Sent]) -> Manifest:
    """The manifest of a compilation whose files are `ranks`; `sent` is what travels where the dialect says another."""
    declared = {info.name: info for info in (*work.source.proto.graph.input, *work.source.proto.graph.output)}

    def entry(value: Value) -> IOEntry:
        place = work.local.doors.get(value.name)
        shape = tuple("" if size is None else size for size in declared_shape(value, declared[value.name]))
        return IOEntry(_door_dtype(value), shape, None if place is None else Placement(place.axis, place.ranges))

    return Manifest(
        tpcompile=__version__,
        source=SourceFile(work.source.file, work.source.nbytes),
        mesh=Mesh(work.request.tp),
        ranks=ranks,
        inputs={value.name: entry(value) for value in work.program.inputs},
        outputs={value.name: entry(value) for value in work.program.outputs},
        plan=PLAN_FILE,
        state=tuple(StatePair(pair.input.name, pair.output.name, pair.axis, pair.kind) for pair in work.state),
        roles=work.roles,
        collectives=tuple(
            _collective(index, call, sent.get(call.node.outputs[0]))
            for index, call in enumerate(work.local.collectives)
        ),
        dialect=work.request.dialect,
        sizes=_fixed_sizes(work.source),
    )


def _fixed_sizes(source: SourceModel) -> dict[str, int]:
    """Symbols of inputs that can only be one number, by the operators that read them."""
    kinds = symbol_kinds(open_source(source))
    return {symbol: size for symbol, size in kinds.items() if isinstance(size, int) and size}


def _collective(index: int, call: CollectiveCall, sent: Sent | None) -> CollectiveEntry:
    entry = CollectiveEntry(index, call.op, call.value.name, call.dtype, call.groups, call.nbytes, call.because)
    if sent is None:
        return entry
    symbols, times, number = call.nbytes.rpartition("*")
    return replace(entry, op=sent.op, dtype=sent.dtype, bytes=f"{symbols}{times}{round(int(number) * sent.growth)}")


def _door_dtype(value: Value) -> str:
    return value.dtype or "float32"


def _nbytes(weight: LocalWeight) -> float:
    count = item_bytes(weight.weight.dtype)
    for size in weight.weight.shape:
        count *= size
    return count if item_bytes(weight.weight.dtype) >= 1 else INLINE_BYTES


def _small(weight: LocalWeight) -> bytes:
    source = weight.weight.source
    if isinstance(source, FileBytes):
        with source.path.open("rb") as file:
            file.seek(source.offset)
            return file.read(source.nbytes)
    return bytes(source.data)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
