"""One network through the builder's API, the same for every module of `targets/tensorrt.py`.

Nothing here knows of ranks, files of a bundle or processes: a model file goes in, an engine's bytes come out, or
faults that say which node is in the way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from tpcompile.bundle.manifest import Profile, ShapeRange
from tpcompile.errors import Fault, Refused, raise_all
from tpcompile.targets.collectives import Collective
from tpcompile.targets.profiles import Candidate, lacking_values
from tpcompile.targets.tensorrt import configure, network_flags

SHAPES = re.compile(r"violate shape constraints|not self-consistent")
"""What the library says of profiles whose shapes do not go together."""
PARSING = re.compile(r"Parsing node: (.*) \[(\w+)\]")
NOISE = re.compile(
    r"^I\w+::\w+: |Error Code:? \d+: |In function \S+:"
    r"|\(?\bIn \S+ at /\S+.*|\(?\[\w+\.(h|cpp):\d+.*?\]|\S*\.cpp:\d+:\s*"
)
"""Places in the library's own sources."""
EARLY = (
    "Building engine",
    "Cloning network graph",
    "Preparing graph for optimization",
    "Building engine from subgraph",
)
"""Phases of a build up to the check of shapes; what comes after them costs time."""
SHOWN_CHARACTERS = 300
WITHOUT = "run the bundle without an engine (ONNX Runtime, on GPUs too)"


def require_types(graph: onnx.GraphProto) -> None:
    """Refuse inputs and outputs of a type that the library would take for another without a word.

    Raises:
        Refused: TP707.
    """
    remedy = f"Cast it to float32 in the model, or {WITHOUT}"
    raise_all(
        Fault("TP707", f"{what} {value.name}", "TensorRT has no float64, and takes it for float32", remedy)
        for what, values in (("input", graph.input), ("output", graph.output))
        for value in values
        if value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    )


@dataclass
class Said:
    """What the library said on its way: errors in order, and warnings that concern profiles."""

    errors: list[str] = field(default_factory=list)
    profile_warnings: list[str] = field(default_factory=list)

    def clear(self) -> None:
        self.errors.clear()
        self.profile_warnings.clear()


def listen(trt: Any, said: Said, parsing: Callable[[str, str], None]) -> Any:
    """A logger that keeps in `said` what matters, and calls `parsing` with name and operator of each node it reads."""

    class Listener(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                said.errors.append(message)
            elif severity == trt.ILogger.Severity.WARNING and SHAPES.search(message):
                said.profile_warnings.append(message)
            elif severity == trt.ILogger.Severity.VERBOSE and (node := PARSING.match(message)):
                parsing(node[1], node[2])

    return Listener()


def plain(message: str) -> str:
    """A message of the library in one short line, without places in its sources."""
    text = " ".join(NOISE.sub(" ", message).split()).rstrip(" .:(")
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


@dataclass(frozen=True)
class Built:
    """An engine, as memory of the library; the profiles it was made for, and what their greatest shapes lack."""

    engine: Any
    profiles: tuple[Profile, ...]
    room: int
    misfits: tuple[str, ...] = ()


class Network:
    """A model as the library read it.

    `path` must be absolute: the parser looks for weights beside the file, and reads them from there without a copy.

    Raises:
        Refused: TP707, for every node that the library does not take.
    """

    def __init__(self, trt: Any, log: Any, said: Said, path: Path, unlowered: Mapping[str, str]) -> None:
        self.trt, self.said = trt, said
        self.builder = trt.Builder(log)
        self.network = self.builder.create_network(network_flags(trt))
        self.parser = trt.OnnxParser(self.network, log)  # owns the weights as long as the network is used
        if not self.parser.parse_from_file(str(path)):
            raise Refused(*self._parser_faults(unlowered))

    def _parser_faults(self, unlowered: Mapping[str, str]) -> list[Fault]:
        """A fault for each operator and reason; of nodes that share both, the first is named."""
        nodes: dict[tuple[str, str], list[str]] = {}
        for error in map(self.parser.get_error, range(self.parser.num_errors)):
            name, said = error.node_name(), plain(error.desc())
            why = "it has no such operator" if "plugin" in said.lower() else said
            if name in unlowered:
                why += f"; it was not lowered: {unlowered[name]}"
            nodes.setdefault((error.node_operator(), why), []).append(name)
        remedy = f"Export the model without this operator or in another form of it, or {WITHOUT}"
        return [
            Fault("TP707", _where(operator, names), f"TensorRT does not take it: {why}", remedy)
            for (operator, why), names in nodes.items()
        ] or [Fault("TP707", "the model", f"TensorRT does not take it: {self._first_error()}", remedy)]

    def _first_error(self) -> str:
        return plain(self.said.errors[0]) if self.said.errors else "it gives no reason"

    @property
    def layers(self) -> int:
        """How many layers the network has."""
        return int(self.network.num_layers)

    def _collective_layers(self) -> Iterator[Any]:
        for layer in map(self.network.get_layer, range(self.network.num_layers)):
            if layer.type == self.trt.LayerType.DIST_COLLECTIVE:
                yield layer

    def check_collectives(self, expected: Sequence[Collective]) -> None:
        """Hold the collective layers of the network against those of the file: one that is lost is silently wrong.

        The library tells a layer's name, over how many ranks it goes, and what becomes of axis 0. It tells neither how
        a layer reduces nor its group: that is seen at run time only.

        Raises:
            Refused: TP708.
        """
        layers = {layer.name: layer for layer in self._collective_layers()}
        calls = {call.name: call for call in expected}
        raise_all(
            Fault("TP708", f"collective {name}", f"the file has {_called(calls.get(name))}, the network "
                  f"{_found(layers.get(name))}", "Report this with the model: such an engine gives wrong numbers")
            for name in {**calls, **layers}
            if name not in calls or name not in layers or not _alike(calls[name], layers[name])
        )  # fmt: skip

    def keep_collectives_apart(self) -> None:
        """Let nothing be fused across a collective: what it reads and gives stays a tensor of its own.

        A tensor marked for debugging must exist by itself; nothing is watched unless a run asks for it, and no number
        changes. A cast there and back would do the same only where another type is at hand that loses nothing.
        """
        for layer in self._collective_layers():
            for tensor in (layer.get_input(0), layer.get_output(0)):
                if not tensor.is_network_input:  # it stands by itself already, and cannot be marked
                    self.network.mark_debug(tensor)

    def build(self, candidates: Iterable[Candidate], cache: TimingCache | None = None) -> Built:
        """The engine for the first candidate that the model has room for; for the very first, if for none.

        Raises:
            Refused: TP706 an input lacks values; TP709 the library builds no engine.
        """
        first = chosen = None
        for candidate in candidates:
            trial = replace(candidate, profiles=tuple(map(self._needed, candidate.profiles)))
            first = first or trial
            if self._has_room(trial):
                chosen = trial
                break
        chosen = chosen or first
        assert chosen is not None  # there is at least one
        self.said.clear()
        config = self._config(chosen.profiles)
        if cache is not None:
            cache.before(config)
        engine = self.builder.build_serialized_network(self.network, config)
        if engine is None:
            raise Refused(self._builder_fault())
        if cache is not None:
            cache.after(config)
        misfits = tuple(map(plain, self.said.profile_warnings))
        return Built(engine, tuple(filter(None, chosen.profiles)), chosen.room, misfits)

    def _builder_fault(self) -> Fault:
        said = self._first_error()
        remedy = f"Try --collective-boundary if this names a collective; else {WITHOUT}"
        if SHAPES.search(said):
            remedy = "Give sizes that the model takes, with --sizes or --profile"
        return Fault("TP709", "", f"TensorRT builds no engine: {said}", remedy)

    def _has_room(self, trial: Candidate) -> bool:
        """Whether shapes go together at the ends of all profiles: known long before an engine is built.

        A build for one shape only is begun and given up where its kernels would be made.
        """
        for profile in trial.profiles:
            for end in ("max", "opt", "min"):
                one = {name: getattr(sizes, end) for name, sizes in profile.items()}
                self.said.clear()
                config = self._config([{name: ShapeRange(shape, shape, shape) for name, shape in one.items()}])
                monitor = config.progress_monitor = give_up_early(self.trt)
                if self.builder.build_serialized_network(self.network, config) is None and not monitor.given_up:
                    return False
        return True

    def _needed(self, profile: Profile) -> Profile:
        """The part of a profile that the network asks for: inputs of dynamic shape, and those read on the host."""
        found, faults = {}, []
        for tensor in map(self.network.get_input, range(self.network.num_inputs)):
            if -1 not in tuple(tensor.shape) and not tensor.is_shape_tensor:
                continue
            if tensor.name in profile:
                found[tensor.name] = profile[tensor.name]
            else:
                faults.append(lacking_values(tensor.name))
        raise_all(faults)
        return found

    def _config(self, profiles: Sequence[Profile]) -> Any:
        config = self.builder.create_builder_config()
        configure(self.trt, config)
        for profile in filter(None, profiles):
            made = self.builder.create_optimization_profile()
            for name, sizes in profile.items():
                self._set(made, name, sizes)
            config.add_optimization_profile(made)
        return config

    def _set(self, profile: Any, name: str, sizes: ShapeRange) -> None:
        tensor = next(
            tensor for tensor in map(self.network.get_input, range(self.network.num_inputs)) if tensor.name == name
        )
        put = profile.set_shape_input if tensor.is_shape_tensor else profile.set_shape
        put(name, list(sizes.min), list(sizes.opt), list(sizes.max))


def _called(call: Collective | None) -> str:
    return "none" if call is None else f"{call.op} over {call.nb_rank} ranks"


def _found(layer: Any) -> str:
    if layer is None:
        return "none"
    return (
        f"one over {layer.num_ranks} ranks that makes {_rows(layer.get_output(0))} of {_rows(layer.get_input(0))} rows"
    )


def _alike(call: Collective, layer: Any) -> bool:
    """Whether a layer goes over as many ranks as the file says, and makes of axis 0 what the operation should."""
    before, after, ranks = _rows(layer.get_input(0)), _rows(layer.get_output(0)), call.nb_rank
    wanted = {"all_gather": before * ranks, "reduce_scatter": before // ranks}.get(call.op, before)
    return int(layer.num_ranks) == ranks and (after == wanted or min(before, after) < 0)


def _rows(tensor: Any) -> int:
    """The size of axis 0, -1 where it varies or there is none."""
    return int(next(iter(tuple(tensor.shape)), -1))


def _where(operator: str, names: Sequence[str]) -> str:
    if not operator:
        return "the model"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"node {names[0]}{more} ({operator})"


@dataclass(frozen=True)
class TimingCache:
    """What builds remember of kernels' times, in a file that ranks hand on one after another."""

    path: Path

    def before(self, config: Any) -> None:
        """Give the builder what earlier ranks measured."""
        held = self.path.read_bytes() if self.path.exists() else b""
        config.set_timing_cache(config.create_timing_cache(held), False)  # one of another version is an error

    def after(self, config: Any) -> None:
        """Keep what was measured for the next rank."""
        self.path.write_bytes(config.get_timing_cache().serialize())


def give_up_early(trt: Any) -> Any:
    """A monitor that ends a build where shapes have been checked and the costly part begins; `given_up` says that."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.given_up = False

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.given_up = self.given_up or phase_name not in EARLY

        def phase_finish(self, phase_name: str) -> None:
            pass

        def step_complete(self, phase_name: str, step: int) -> bool:
            return not self.given_up

    return Monitor()
