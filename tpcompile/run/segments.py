"""A rank's model as a chain of segments with collectives between them, whatever computes them (an `Executor`).

Weights stay in their files: what loads a segment maps them from the bundle's folder, so that on a CPU a start takes a
fraction of a second whatever the size (docs/performance.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from tpcompile.bundle.manifest import Manifest, RankEntry
from tpcompile.errors import Fault, RankFailed, refuse
from tpcompile.graph.scopes import subgraphs
from tpcompile.run.bfloat16 import compute_in_float32
from tpcompile.run.dump import Dump
from tpcompile.run.executor import Executor, Loaded, Memory, Value
from tpcompile.run.mpi import World
from tpcompile.run.split import Branch, Choice, Exchange, Segment, Stage, collectives, split
from tpcompile.run.watchdog import Watchdog
from tpcompile.targets.collectives import DOMAIN, Collective
from tpcompile.weights.checksum import KEY as CHECKSUM
from tpcompile.weights.checksum import edge_checksum

Values = dict[str, Value]


@dataclass
class _Segment:
    """One segment ready to run; `released` are values that nobody reads after it."""

    loaded: Loaded
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    released: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return self.inputs

    @property
    def makes(self) -> tuple[str, ...]:
        return self.outputs


@dataclass
class _Collective:
    """One collective ready to run; `label` says which it is, for messages."""

    found: Collective
    owned: bool
    label: str
    released: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.found.input,)

    @property
    def makes(self) -> tuple[str, ...]:
        return (self.found.output,)


@dataclass
class _Chain:
    """Stages that run one after the other: a whole graph, or one branch of a choice with the values it captures."""

    stages: list[_Segment | _Collective | _Choice]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        """Find after which stage each value is read for the last time."""
        last: dict[str, int] = {}
        for index, stage in enumerate(self.stages):
            last.update(dict.fromkeys(stage.reads, index))
        for index, stage in enumerate(self.stages):
            stage.released = tuple(name for name, at in last.items() if at == index and name not in self.outputs)


@dataclass
class _Choice:
    """An If ready to run; `branches[taken]` are those of its two branches."""

    found: Choice
    branches: dict[bool, _Chain]
    released: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.found.condition, *self.branches[True].inputs, *self.branches[False].inputs)

    @property
    def makes(self) -> tuple[str, ...]:
        return self.found.outputs


class SegmentRunner:
    """Runs one rank's model file. All ranks make and run theirs together.

    `stages` is the graph as it was split; `inputs` and `outputs` are the names of what it takes and gives. `dump` keeps
    a copy of the values it asks for.

    Raises:
        Refused: TP605 the model file cannot be read or reads files that the bundle does not list; TP606 a segment
            cannot be loaded; TP602 collectives inside a loop.
    """

    def __init__(
        self,
        folder: Path,
        entry: RankEntry,
        world: World,
        watchdog: Watchdog,
        executor: Executor,
        *,
        dump: Dump | None = None,
    ) -> None:
        self.world, self.watchdog, self.dump = world, watchdog, dump
        self.executor = executor
        self.memory: Memory = executor
        model = _read_model(folder / entry.model, entry)
        if dump is not None:
            dump.choose(model.graph)
        if not executor.keeps_halves:
            compute_in_float32(model.graph)
        shown = dump.places if dump is not None else ()
        self.stages = split(model.graph, shown, widen=not executor.keeps_halves)
        builder = _Builder(model, executor, len(list(collectives(self.stages))))
        stored = {tensor.name for tensor in model.graph.initializer}
        self.inputs = tuple(value.name for value in model.graph.input if value.name not in stored)
        self.outputs = tuple(value.name for value in model.graph.output)
        self._chain = builder.chain(self.stages, self.inputs, self.outputs)

    def contradiction(self, manifest: Manifest, rank: int) -> str | None:
        """Where bundle.json says something else than the model of `rank`."""
        for side, listed, names in (
            ("inputs", manifest.inputs, self.inputs),
            ("outputs", manifest.outputs, self.outputs),
        ):
            if list(listed) != list(names):
                return f"lists {side} {', '.join(listed)}, and the model of rank {rank} has {', '.join(names)}"
        calls = list(collectives(self.stages))
        entries = manifest.collectives
        if len(calls) != len(entries):
            return f"lists {len(entries)} collectives, and the model of rank {rank} runs {len(calls)}"
        for call, entry in zip(calls, entries, strict=True):
            if call.op != entry.op or (call.groups or ()) not in (entry.groups or ((),)):
                listed_groups = " ".join(str(list(group)) for group in entry.groups) or "of all"
                found = f"{call} in group {list(call.groups) or 'of all'}"
                return f"lists collective {entry.index} as {entry.op} in groups {listed_groups}; it is {found}"
        return None

    def calls(self) -> list[tuple[str, list[int], int]]:
        """The collectives in order; each branch of an If between marks of its own."""
        return list(_calls(self.stages))

    def join(self) -> None:
        """Make the communicators, together with all ranks."""
        found = list(collectives(self.stages))
        self.world.join_groups(found)
        self.executor.join(found, self.watchdog)

    def run(self, feeds: Mapping[str, Value]) -> Values:
        """This rank's outputs for this rank's inputs. Inputs are never written to; outputs are new memory each time."""
        made = self._follow(self._chain, dict(feeds))
        self.executor.finish()
        return made

    def _follow(self, chain: _Chain, values: Values) -> Values:
        """The outputs of `chain`; `values` are those it reads, and are used up."""
        if self.dump is not None:
            self.dump.note(self.executor, values, values)
        for stage in chain.stages:
            if isinstance(stage, _Segment):
                values.update(zip(stage.outputs, stage.loaded.run(values), strict=True))
            elif isinstance(stage, _Choice):
                mine = bool(self.executor.view(values[stage.found.condition]).item())
                taken = stage.branches[self._agreed(stage.found, mine)]
                made = self._follow(taken, {name: values[name] for name in taken.inputs})
                values.update(zip(stage.found.outputs, (made[name] for name in taken.outputs), strict=True))
            else:
                self.watchdog.waits(stage.label)
                given = values[stage.found.input]
                values[stage.found.output] = self.executor.perform(
                    stage.found, given, owned=stage.owned, label=stage.label
                )
                self.watchdog.goes_on()
            if self.dump is not None:
                self.dump.note(self.executor, values, stage.makes)
            for name in stage.released:
                del values[name]
        return {name: values[name] for name in chain.outputs}

    def _agreed(self, found: Choice, mine: bool) -> bool:
        """The condition, found to be the same on all ranks: in different branches they would wait for each other."""
        self.watchdog.waits(f"the choice of a branch of If {found.name}")
        theirs = self.world.votes(mine)
        self.watchdog.goes_on()
        if len(set(theirs)) > 1:
            sides = [[str(rank) for rank, vote in enumerate(theirs) if vote is side] for side in (True, False)]
            fact = (
                f"its branches hold collectives, but rank {', '.join(sides[0])} takes the then_branch and rank "
                f"{', '.join(sides[1])} the else_branch"
            )
            raise RankFailed(Fault("TP614", f"If {found.name}", fact,
                                   "Compile the model again; if it stays, report it with the model"))  # fmt: skip
        return mine


def _calls(stages: Sequence[Stage]) -> Iterator[tuple[str, list[int], int]]:
    for stage in stages:
        if isinstance(stage, Exchange):
            yield str(stage.collective), list(stage.collective.groups), stage.collective.root
        elif isinstance(stage, Choice):
            yield f"the then_branch of If {stage.name}", [], -1
            yield from _calls(stage.then_branch.stages)
            yield f"the else_branch of If {stage.name}", [], -1
            yield from _calls(stage.else_branch.stages)
            yield f"the end of If {stage.name}", [], -1


class _Builder:
    """Makes stages one after the other: each learns the types of its inputs from those before it."""

    def __init__(self, model: onnx.ModelProto, executor: Executor, collectives: int) -> None:
        self.model, self.executor, self.count = model, executor, collectives
        self.delivered = 0
        self.initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        self.known = {value.name: value for value in model.graph.input}
        self.symbols = {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim}
        self.declared = {value.name: value for value in [*model.graph.value_info, *model.graph.output]}

    def chain(self, stages: Sequence[Stage], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> _Chain:
        made: list[_Segment | _Collective | _Choice] = []
        for stage in stages:
            if isinstance(stage, Segment):
                made.append(self.segment(stage))
            elif isinstance(stage, Choice):
                made.append(self.choice(stage))
            else:
                label = f"collective {self.delivered} of {self.count}, {stage.collective}"
                made.append(_Collective(stage.collective, stage.owned, label))
                self.deliver(stage.collective)
                self.delivered += 1
        return _Chain(made, inputs, outputs)

    def choice(self, found: Choice) -> _Choice:
        """Both branches; what they give has the shape that both declare, or none where they differ."""
        chains, given = {}, []
        for taken, branch in ((True, found.then_branch), (False, found.else_branch)):
            chains[taken] = self.branch(branch)
            given.append([self.known[name] for name in branch.outputs])
        for name, mine, theirs in zip(found.outputs, *given, strict=True):
            value = onnx.ValueInfoProto(name=name)
            value.type.tensor_type.elem_type = mine.type.tensor_type.elem_type
            declared = [kind.type.tensor_type for kind in (mine, theirs)]
            if all(kind.HasField("shape") for kind in declared) and mine.type == theirs.type:
                value.type.CopyFrom(mine.type)
            self.known[name] = value
        return _Choice(found, chains)

    def branch(self, found: Branch) -> _Chain:
        """A branch, with its own initializers and declarations in sight while its stages are made."""
        outside = self.initializers, self.declared
        self.initializers = {tensor.name: tensor for tensor in found.graph.initializer}
        self.declared = {value.name: value for value in [*found.graph.value_info, *found.graph.output]}
        chain = self.chain(found.stages, found.inputs, found.outputs)
        self.initializers, self.declared = outside
        return chain

    def segment(self, segment: Segment) -> _Segment:
        graph = onnx.GraphProto(name="segment")
        graph.node.extend(segment.nodes)
        graph.input.extend(self.known[name] for name in segment.inputs)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in segment.outputs)
        graph.initializer.extend(self.initializers[name] for name in segment.initializers)
        part = onnx.ModelProto(ir_version=self.model.ir_version, graph=graph, functions=self.model.functions)
        part.opset_import.extend(opset for opset in self.model.opset_import if opset.domain != DOMAIN)
        loaded = self.executor.load(part, segment.inputs, segment.outputs)
        for name, element, shape in loaded.made:
            value = onnx.ValueInfoProto(name=name)
            value.type.tensor_type.elem_type = element
            self._shape(value, shape)
            self.known[name] = value
        return _Segment(loaded, segment.inputs, segment.outputs)

    def deliver(self, found: Collective) -> None:
        """Note the type of what a collective gives: that of its input, the shape as the file declares it."""
        value = onnx.ValueInfoProto(name=found.output)
        value.type.tensor_type.elem_type = self.known[found.input].type.tensor_type.elem_type
        declared = self.declared.get(found.output)
        if declared is not None and declared.type.tensor_type.HasField("shape"):
            shape = [dim.dim_value or dim.dim_param or None for dim in declared.type.tensor_type.shape.dim]
            self._shape(value, shape)
        self.known[found.output] = value

    def _shape(self, value: onnx.ValueInfoProto, shape: Sequence[int | str | None]) -> None:
        """Declare sizes; symbols only where the model's inputs use them: others mean nothing across sessions."""
        value.type.tensor_type.shape.SetInParent()
        for size in shape:
            dim = value.type.tensor_type.shape.dim.add()
            if isinstance(size, int):
                dim.dim_value = size
            elif size in self.symbols:
                dim.dim_param = size


def _read_model(path: Path, entry: RankEntry) -> onnx.ModelProto:
    content, listed = path.read_bytes(), {data.file for data in entry.data}
    if hashlib.sha256(content).hexdigest() != entry.model_sha256:
        raise refuse("TP608", str(path), "is not the file that bundle.json was written with",
                     "Files of different compiles are mixed: copy the whole bundle again")  # fmt: skip
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:
        raise refuse("TP605", str(path), f"is no readable ONNX model ({error})", "Copy the bundle again") from None
    stored = list(_stored(model.graph))
    entries = [entry for tensor in stored for entry in tensor.external_data]
    read = {entry.value for entry in entries if entry.key == "location"}
    if not read <= listed:
        raise refuse("TP605", str(path), f"reads {', '.join(sorted(read - listed))}, which bundle.json does not list",
                     "Do not run this bundle unless you know who made it; compile the model again")  # fmt: skip
    changed = [tensor.name for tensor in stored if _is_changed(path.parent, tensor)]
    if changed:
        raise refuse("TP608", f"{path} weight {changed[0]}",
                     f"its bytes are not those that were written with the model ({len(changed)} such weights)",
                     "Files of different compiles are mixed, or damaged: copy the whole bundle again")  # fmt: skip
    return model


def _stored(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every initializer, those of branches and bodies included."""
    yield from graph.initializer
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _stored(inner)


def _is_changed(folder: Path, tensor: onnx.TensorProto) -> bool:
    """Whether the ends of a tensor's bytes differ from what the compiler wrote, as far as it said."""
    said: str | None = next((entry.value for entry in tensor.metadata_props if entry.key == CHECKSUM), None)
    place = {entry.key: entry.value for entry in tensor.external_data}
    if said is None or "location" not in place:
        return False
    found = edge_checksum(folder / place["location"], int(place.get("offset", 0)), int(place.get("length", 0)))
    return found != said
