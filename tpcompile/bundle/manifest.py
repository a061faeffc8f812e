"""`bundle.json`, format 1: what a bundle holds, as typed values, read with suspicion and written as a contract.

A bundle may come from anywhere, so `Manifest.read` trusts nothing: every key and type is checked, file names
stay within the folder, and sizes on disk must be those that were written. Imports neither onnx nor scipy, so that
a rank starts fast.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tpcompile.bundle.checked import Checked
from tpcompile.bundle.contradictions import contradictions
from tpcompile.errors import Refused, refuse

FILE_NAME = "bundle.json"
FORMAT = 1
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
TORCH = "torch"
ONNX_DIALECTS = ("tensorrt", "onnxruntime")
DIALECTS = (*ONNX_DIALECTS, TORCH)
"""Whose collectives the rank files hold: DistCollective, which TensorRT and the runner read, or ONNX Runtime's; or they
are programs of torch, with operators of our own."""
STATE_KINDS = ("append", "in_place")
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int4", "uint4", "int2", "uint2"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
)
"""Names that numpy and ml_dtypes give the types of inputs and outputs."""
LIBRARIES = ("tensorrt", "tensorrt_rtx")
"""Names of the Python modules whose engines a bundle may hold."""
REBUILD = "Compile the model again"


@dataclass(frozen=True)
class SourceFile:
    """The model that was compiled: `file` its name (for people), `bytes` its size."""

    file: str
    bytes: int


@dataclass(frozen=True)
class Mesh:
    """The arrangement of ranks: `tp` tensor-parallel ranks times `pp` pipeline stages."""

    tp: int
    pp: int = 1


@dataclass(frozen=True)
class DataFile:
    """A file of weights: `file` its name in the folder, `bytes` its exact size, `sha256` "" where none was made."""

    file: str
    bytes: int
    sha256: str = ""


@dataclass(frozen=True)
class ShapeRange:
    """The sizes an input may have in a profile, axis by axis; `opt` is what kernels are chosen for.

    For an input whose values are sizes (TensorRT reads those on the host), the least, usual and greatest values.
    """

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


Profile = Mapping[str, ShapeRange]
"""By name of input, those of dynamic shape and those read on the host only."""


@dataclass(frozen=True)
class EngineEntry:
    """An engine that a rank may run instead of its model.

    `library` is the Python module that built it and reads it, `version` of that; `compute_capability` what it was
    built for ("8.9", or several: "8.0, 8.6"); `precision` the type of most of its weights; `profiles` in the engine's
    order, () where no shape is dynamic; `collectives` how many collective layers it holds.
    """

    file: str
    bytes: int
    sha256: str
    library: str
    version: str
    compute_capability: str
    precision: str
    profiles: tuple[Profile, ...] = ()
    collectives: int = 0


@dataclass(frozen=True)
class RankEntry:
    """What one rank runs: its model file and every weight file that this model reads.

    `tp` and `pp` are its place in the mesh; `model_sha256` the hex digest of the model file; `engines` one of each
    library at most.
    """

    rank: int
    tp: int
    pp: int
    model: str
    model_sha256: str
    data: tuple[DataFile, ...] = ()
    engines: tuple[EngineEntry, ...] = ()

    @property
    def files(self) -> tuple[DataFile | EngineEntry, ...]:
        """The files of a rank beside its model, with their sizes."""
        return (*self.data, *self.engines)


@dataclass(frozen=True)
class Placement:
    """How a graph input or output is cut: along `axis`; `ranges[rank]` are half-open index ranges of the global axis.

    Several ranges for sums, the same range on two ranks means copies. `axis=1, ranges=(((0, 2),), ((2, 4),))` gives
    each of two ranks two of four heads.
    """

    axis: int
    ranges: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def global_size(self) -> int:
        """The size of the whole axis."""
        return max(high for parts in self.ranges for _, high in parts)

    def local_size(self, rank: int) -> int:
        """How many indices of the axis `rank` holds."""
        return sum(high - low for low, high in self.ranges[rank])


@dataclass(frozen=True)
class IOEntry:
    """A graph input or output as the source declares it: `shape` of ints and symbols; `placement` None where whole."""

    dtype: str
    shape: tuple[int | str, ...]
    placement: Placement | None = None


@dataclass(frozen=True)
class StatePair:
    """A cache: what comes out as `output` goes in as `input` at the next step.

    `append` grows along `axis` by each step; `in_place` keeps its size and is written at a position.
    """

    input: str
    output: str
    axis: int
    kind: str


@dataclass(frozen=True)
class CollectiveEntry:
    """A collective in file order: `groups` lists every group of ranks, () for all ranks in one."""

    index: int
    op: str
    value: str
    dtype: str
    groups: tuple[tuple[int, ...], ...]
    bytes: str
    because: str


@dataclass(frozen=True)
class Manifest:
    """A whole `bundle.json`. Keys this version does not know stay in `extra`.

    `dialect` is one of `DIALECTS`; `sizes` are symbols of inputs that the model has only one number for: the size of a
    head, which some exporters leave open in caches.
    """

    tpcompile: str
    source: SourceFile
    mesh: Mesh
    ranks: tuple[RankEntry, ...]
    inputs: Mapping[str, IOEntry]
    outputs: Mapping[str, IOEntry]
    plan: str
    state: tuple[StatePair, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    collectives: tuple[CollectiveEntry, ...] = ()
    dialect: str = DIALECTS[0]
    sizes: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """How many ranks the bundle is for."""
        return self.mesh.tp * self.mesh.pp

    def to_json(self) -> dict[str, Any]:
        """The content of `bundle.json`, keys in the order of the format."""
        placed = {side: {name: _io_json(entry) for name, entry in entries.items()}
                  for side, entries in (("inputs", self.inputs), ("outputs", self.outputs))}  # fmt: skip
        return {
            "format": FORMAT,
            "tpcompile": self.tpcompile,
            "source": asdict(self.source),
            "mesh": asdict(self.mesh),
            "ranks": [_rank_json(entry) for entry in self.ranks],
            **placed,
            "state": [asdict(pair) for pair in self.state],
            "roles": dict(self.roles),
            "sizes": dict(self.sizes),
            "dialect": self.dialect,
            "collectives": [asdict(entry) for entry in self.collectives],
            "plan": self.plan,
            **self.extra,
        }

    def write(self, folder: Path | str) -> Path:
        """Write `bundle.json` into `folder`; returns its path. Refuses (TP45x) what `read` would, files aside."""
        text = json.dumps(self.to_json(), indent=1)
        _parse(json.loads(text), FILE_NAME)
        path = Path(folder) / FILE_NAME
        path.write_text(text + "\n", encoding="utf-8")
        return path

    @classmethod
    def read(cls, folder: Path | str, *, ranks: Iterable[int] | None = None, of_torch: bool = False) -> Manifest:
        """Read and check the bundle in `folder`: one of ONNX models, or with `of_torch` one of torch's programs.

        `ranks` are those whose files must be there (a node may hold only its own); all by default.

        Raises:
            Refused: TP451 no readable bundle.json; TP452 another format; TP453 a key missing or of the wrong kind;
                TP454 an unsafe file name; TP455 a file missing; TP456 a wrong size; TP457 parts that contradict;
                TP458 a bundle of the other kind.
        """
        path = Path(folder) / FILE_NAME
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise refuse("TP451", str(folder), f"no {FILE_NAME} in this folder",
                         "Give the folder that `tpcompile MODEL --tp N` wrote") from None  # fmt: skip
        except NotADirectoryError:
            raise refuse("TP451", str(folder), "is a file, and a bundle is a folder",
                         "Give the folder that `tpcompile MODEL --tp N` wrote") from None  # fmt: skip
        except (OSError, ValueError, RecursionError) as error:
            raise refuse("TP451", str(path), f"cannot be read as JSON ({error})", REBUILD) from None
        manifest = _parse(content, str(path))
        if (manifest.dialect == TORCH) != of_torch:
            raise _other_kind(folder, manifest)
        wanted = set(range(manifest.world_size)) if ranks is None else set(ranks)
        for entry in manifest.ranks:
            if entry.rank in wanted:
                _check_files(Path(folder), entry)
        return manifest


def _other_kind(folder: Path | str, manifest: Manifest) -> Refused:
    """TP458: ONNX models where torch's programs are asked for, or the other way round."""
    if manifest.dialect == TORCH:
        run = f"torchrun --nproc-per-node {manifest.world_size} -m tpcompile.torch.run {folder}"
        return refuse("TP458", str(folder), "this bundle holds programs of torch, not ONNX models",
                      f"Run it with `{run}`, or compile without `--target torch`")  # fmt: skip
    run = f"tpcompile run {folder} -n {manifest.world_size}"
    return refuse("TP458", str(folder), "this bundle holds ONNX models, not programs of torch",
                  f"Run it with `{run}`, or compile with `--target torch`")  # fmt: skip


def _io_json(entry: IOEntry) -> dict[str, Any]:
    place = None if entry.placement is None else {"kind": "shard", **asdict(entry.placement)}
    return {"dtype": entry.dtype, "shape": list(entry.shape), "placement": place}


def _rank_json(entry: RankEntry) -> dict[str, Any]:
    content = asdict(entry)
    content["data"] = [{k: v for k, v in asdict(data).items() if k != "sha256" or v} for data in entry.data]
    return content


def _check_files(folder: Path, entry: RankEntry) -> None:
    for name, size in [(entry.model, None), *((file.file, file.bytes) for file in entry.files)]:
        path = folder / name
        if not path.is_file():
            raise refuse("TP455", str(path), f"the file that rank {entry.rank} needs is not there",
                         "Copy the whole bundle folder, or compile the model again")  # fmt: skip
        found = path.stat().st_size
        if size is not None and found != size:
            raise refuse("TP456", str(path), f"holds {found} bytes instead of {size}",
                         "The copy is incomplete or comes from another compile: copy the bundle again")  # fmt: skip


def _parse(content: Any, where: str) -> Manifest:
    top = Checked(content, where, "")
    found = top.integer("format")
    if found != FORMAT:
        raise refuse("TP452", where, f"format {found}, and this tpcompile reads format {FORMAT}",
                     f"{REBUILD} with this version, or install the version that wrote it")  # fmt: skip
    known = {"format", *(f.name for f in fields(Manifest))} - {"extra"}
    source, mesh = top.child("source"), top.child("mesh")
    manifest = Manifest(
        tpcompile=top.text("tpcompile"),
        source=SourceFile(source.text("file"), source.integer("bytes", low=0)),
        mesh=Mesh(mesh.integer("tp", low=1), mesh.integer("pp", low=1)),
        ranks=tuple(_rank(item) for item in top.items("ranks")),
        inputs={name: _io(item) for name, item in top.members("inputs")},
        outputs={name: _io(item) for name, item in top.members("outputs")},
        plan=top.file_name("plan"),
        state=tuple(_state(item) for item in top.items("state")),
        roles=top.texts("roles"),
        collectives=tuple(_collective(item) for item in top.items("collectives")),
        dialect=top.choice("dialect", DIALECTS) if "dialect" in content else DIALECTS[0],
        sizes=top.integers("sizes") if "sizes" in content else {},
        extra={key: value for key, value in content.items() if key not in known},
    )
    _check_sense(manifest, where)
    return manifest


def _rank(item: Checked) -> RankEntry:
    return RankEntry(
        rank=item.integer("rank", low=0), tp=item.integer("tp", low=0), pp=item.integer("pp", low=0),
        model=item.file_name("model"), model_sha256=item.text("model_sha256"),
        data=tuple(DataFile(data.file_name("file"), data.integer("bytes", low=0), data.text("sha256", ""))
                   for data in item.items("data")),
        engines=tuple(_engine(engine) for engine in item.items("engines")),
    )  # fmt: skip


def _engine(item: Checked) -> EngineEntry:
    return EngineEntry(
        file=item.file_name("file"), bytes=item.integer("bytes", low=1), sha256=item.text("sha256"),
        library=item.choice("library", LIBRARIES), version=item.text("version"),
        compute_capability=item.text("compute_capability"), precision=item.choice("precision", DTYPES),
        profiles=tuple({name: ShapeRange(sizes.sizes("min"), sizes.sizes("opt"), sizes.sizes("max"))
                        for name, sizes in profile.every()} for profile in item.items("profiles")),
        collectives=item.integer("collectives", low=0),
    )  # fmt: skip


def _io(item: Checked) -> IOEntry:
    place = item.child("placement") if item.get("placement") is not None else None
    if place is None:
        return IOEntry(item.choice("dtype", DTYPES), item.shape("shape"))
    place.choice("kind", ("shard",))
    cut = Placement(place.integer("axis", low=0), place.ranges("ranges"))
    return IOEntry(item.choice("dtype", DTYPES), item.shape("shape"), cut)


def _state(item: Checked) -> StatePair:
    kind = item.choice("kind", STATE_KINDS)
    return StatePair(item.text("input"), item.text("output"), item.integer("axis", low=0), kind)


def _collective(item: Checked) -> CollectiveEntry:
    return CollectiveEntry(
        index=item.integer("index", low=0), op=item.choice("op", OPERATIONS), value=item.text("value"),
        dtype=item.text("dtype"), groups=item.groups("groups"), bytes=item.text("bytes"), because=item.text("because"),
    )  # fmt: skip


def _check_sense(manifest: Manifest, where: str) -> None:
    """Refuse (TP457) a manifest whose parts contradict each other."""
    found = list(contradictions(manifest))
    if found:
        raise refuse("TP457", where, "; ".join(found), REBUILD)
