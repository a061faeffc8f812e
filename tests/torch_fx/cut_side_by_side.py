"""Samples exported side by side in one program, cut along chosen dims, and run on all ranks with gradients.

Each has inputs, weights and outputs of its own, so what holds for it here holds for it alone: exporting and writing
programs costs far more than what one operator adds to them.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from tests.rules.cuts import Plan, named_leaves
from tests.torch_fx import at_once
from tests.torch_fx.lockstep import Interpreted, Ranks
from tests.torch_fx.sample import SEEN, SIZES, Sample, Tensor
from tpcompile.dims.analysis import analyze
from tpcompile.dims.cut import Cut, Mesh
from tpcompile.dims.dim import Dim, root
from tpcompile.graph.program import Node, Value
from tpcompile.passes.check_local import CheckLocal
from tpcompile.passes.compilation import Compilation
from tpcompile.passes.remove_unused import RemoveUnused
from tpcompile.passes.rewrite import Rewriter
from tpcompile.plan.request import Request
from tpcompile.torch.capture import capture
from tpcompile.torch.programs import Parallelized, start
from tpcompile.weights.ranges import take

if find_spec("transformers"):
    import_module("transformers.integrations.moe")  # makes the operators of its samples known to torch
aten = torch.ops.aten
INNER = 6
"""The size of the dim that is summed over by products in front of inputs."""


def drawn(tensor: Tensor, shape: Sequence[int], between: tuple[float, float] | None) -> Any:
    """Random values that depend on the name and the shape alone."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{tensor.name} {shape}".encode()))
    dtype = getattr(torch, tensor.dtype)
    if dtype == torch.bool:
        return torch.rand(tuple(shape), generator=generator) < 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        low, high = between or (0, 5)
        return torch.randint(int(low), int(high), tuple(shape), generator=generator, dtype=dtype)
    if dtype.is_complex:
        return torch.randn(tuple(shape), generator=generator, dtype=dtype)
    found = torch.randn(tuple(shape), generator=generator)
    if between is not None:
        found = torch.rand(tuple(shape), generator=generator) * (between[1] - between[0]) + between[0]
    return found.to(dtype)


Gradients = dict[str, Any]


@dataclass(frozen=True)
class Given:
    """One tensor of the program: input `name` of a sample, or one side of the product that stands for it."""

    sample: Sample
    tensor: Tensor
    key: str

    def symbol(self, axis: str) -> str:
        """Symbols b and s are those of all samples, others each sample's own, and 9 at most."""
        return axis if axis in SIZES else f"{axis}_{self.key.rpartition('_')[2]}"

    def shape(self, seen: bool) -> tuple[int, ...]:
        sizes = dict(self.sample.sizes)
        if seen:
            sizes = {name: SEEN.get(name, size + 2) for name, size in sizes.items()}
        return self.tensor.shape(sizes)

    def value(self, seen: bool) -> Any:
        return drawn(self.tensor, self.shape(seen), self.sample.values.get(self.tensor.name))


class SideBySide(torch.nn.Module):
    """All samples' functions in one.

    Args:
        samples: which.
        products: whether each float input or weight is the product of two inputs, "NAME.left" and "NAME.right".
        numbers: whether symbols are numbers.
    """

    def __init__(self, samples: Sequence[Sample], products: bool = False, numbers: bool = False) -> None:
        super().__init__()
        self.samples, self.numbers = samples, numbers
        self.inputs: dict[str, Given] = {}
        self.stored: dict[str, Given] = {}
        self.split: set[str] = set()
        for place, sample in enumerate(samples):
            for tensor in sample.tensors():
                key = f"{tensor.name}_{place}"
                given = Given(sample, tensor, key)
                if products and tensor.dtype == "float32" and tensor.axes:
                    self.split.add(key)
                    left, right = (*tensor.axes[:-1], INNER), (INNER, tensor.axes[-1])
                    for side, axes in (("left", left), ("right", right)):
                        part = Tensor(f"{tensor.name}_{side}", axes, "input", "float32")
                        self.inputs[f"{key}_{side}"] = Given(sample, part, key)
                elif tensor.kind == "input":
                    self.inputs[key] = given
                elif tensor.kind == "weight":
                    self.stored[key] = given
                    self.register_parameter(key, torch.nn.Parameter(given.value(False)))
                else:
                    self.stored[key] = given
                    self.register_buffer(key, given.value(False))

    def forward(self, given: dict[str, Any]) -> list[list[Any]]:
        return [self.one(place, given) for place in range(len(self.samples))]

    def one(self, place: int, given: Mapping[str, Any]) -> list[Any]:
        try:
            return self._one(place, self.samples[place], given)
        except Exception as error:
            error.add_note(f"in sample {self.samples[place]}")
            raise

    def _one(self, place: int, sample: Sample, given: Mapping[str, Any]) -> list[Any]:
        names: dict[str, Any] = {}
        for tensor in sample.tensors():
            key = f"{tensor.name}_{place}"
            if key in self.split:
                found = given[f"{key}_left"] @ given[f"{key}_right"]
            else:
                found = given[key] if key in given else getattr(self, key)
            names[tensor.name] = found
            for axis, size in zip(tensor.axes, found.shape, strict=True):
                if isinstance(axis, str):
                    names.setdefault(axis, size)
        code = f"{sample.overload}{sample.code}" if sample.code.startswith("(") else sample.code
        *before, last = code.split(";")
        everything: dict[str, Any] = {"aten": aten, "torch": torch} | names
        for line in before:
            exec(line.strip(), everything)
        found = eval(last.strip(), everything)
        return [each for each in (found if isinstance(found, tuple | list) else [found]) if torch.is_tensor(each)]

    def feeds(self, seen: bool = False) -> dict[str, Any]:
        """Random inputs, of the sizes that are exported where `seen`."""
        return {key: given.value(seen and not self.numbers) for key, given in self.inputs.items()}

    def export(self) -> torch.export.ExportedProgram:
        dims = {name: torch.export.Dim(name, min=2, max=None if name in SIZES else 9) for name in self._symbols()}
        dynamic = {
            key: {
                place: dims[given.symbol(axis)]
                for place, axis in enumerate(given.tensor.axes)
                if isinstance(axis, str) and not self.numbers
            }
            for key, given in self.inputs.items()
        }
        return torch.export.export(self, (self.feeds(seen=True),), dynamic_shapes=(dynamic,), strict=False)

    def _symbols(self) -> set[str]:
        return {g.symbol(axis) for g in self.inputs.values() for axis in g.tensor.axes if isinstance(axis, str)}


class Analysed:
    """Samples exported and analysed; `nodes[k]` are those that make the outputs of sample k, in order."""

    def __init__(self, samples: Sequence[Sample], **variant: bool) -> None:
        self.samples = samples
        self.module = SideBySide(samples, **variant)
        captured = capture(self.module.export())
        self.work = start(captured, Request(training=True))
        self.work.analysis = analyze(self.work.program)
        self.called: dict[Value, str] = {}
        for value, (key, given) in zip(self.work.program.inputs, self.module.inputs.items(), strict=True):
            assert key in value.name
            self.called[value] = given.tensor.name
        for value in self.work.program.weights:
            given = self.module.stored.get(value.name)
            self.called[value] = given.tensor.name if given is not None else value.name
        self.feeds = self.module.feeds()
        self.counts = [len(each) for each in self.module(self.feeds)]
        self.owners = [place for place, count in enumerate(self.counts) for _ in range(count)]
        weights = dict(self.module.named_parameters())
        given = self.leaves()
        self.outputs = [*itertools.chain(*self.module(given))]
        self.gradients = gradients(self.total(self.outputs), given | weights)
        made = iter(self.work.program.outputs)
        self.nodes = [list(self._making([next(made) for _ in range(count)])) for count in self.counts]

    def _making(self, outputs: Sequence[Value]) -> Iterator[Node]:
        found: set[Node] = set()
        todo = [value.producer for value in outputs if value.producer is not None]
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += [value.producer for value in node.inputs if value is not None and value.producer is not None]
        yield from (node for node in self.work.program.nodes if node in found)

    def node(self, place: int) -> Node | None:
        """The node of the operator that sample `place` is about, None where reading left nothing of it."""
        graph = self.work.source.program.graph
        names = {node.name for node in graph.nodes if str(node.target) == self.samples[place].overload}
        return next((node for node in self.nodes[place] if node.name in names), None)

    def named(self, place: int) -> dict[str, Dim]:
        """The static leaves of one sample."""
        return named_leaves(self.work.analysis, self.nodes[place])

    def leaves(self) -> dict[str, Any]:
        """The inputs as one rank has them."""
        return {key: value.detach().clone().requires_grad_(_real(value)) for key, value in self.feeds.items()}

    def total(self, outputs: Sequence[Any]) -> Any:
        """A sum of all float outputs, each element times a number."""
        total: Any = torch.zeros((), requires_grad=True)
        for place, output in zip(self.owners, outputs, strict=True):
            if output.requires_grad and self.samples[place].trains:
                each = output * numbers(place, tuple(output.shape), output.dtype)
                total = total + (torch.view_as_real(each) if each.is_complex() else each).sum()
        return total

    def product(self, place: int, name: str) -> tuple[Value, Dim]:
        """The product in front of an input, and the dim that it sums over."""
        key = f"{name}_{place}_right"
        value = next(v for v, k in zip(self.work.program.inputs, self.module.inputs, strict=True) if k == key)
        axes, made = self.work.analysis.axes[value], value.consumers[0][0].outputs[0]
        assert axes is not None and made is not None
        return made, root(axes[0])

    def factors(self, place: int) -> list[str]:
        """The inputs of a sample that products stand in front of."""
        return [t.name for t in self.samples[place].tensors() if f"{t.name}_{place}" in self.module.split]


@functools.cache
def analysed(samples: tuple[Sample, ...], products: bool = False, numbers: bool = False) -> Analysed:
    """Samples exported and analysed, once per process."""
    return Analysed(samples, products=products, numbers=numbers)


def force(of: Analysed, tp: int, plan: Plan) -> Parallelized:
    """Cut exactly these leaves over these sub-axes; inputs and outputs stay whole."""
    work = of.work
    rewriter = Rewriter(
        work.analysis, Cut(Mesh(tp), dict(plan)), frozenset(), work.samples.describe, lambda node: "", training=True
    )
    done = Compilation(work.source, Request(tp=tp, training=True), work.program)
    done.analysis, done.local = work.analysis, rewriter.run()
    RemoveUnused().run(done)
    CheckLocal().run(done)
    return Parallelized(done)


def _real(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


@functools.cache
def numbers(seed: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """What elements of an output count in the sum that gradients are of."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradients(total: Any, leaves: Mapping[str, Any]) -> Gradients:
    """Of all leaves that have one."""
    trained = {key: tensor for key, tensor in leaves.items() if tensor.requires_grad}
    if not trained:
        return {}
    return dict(zip(trained, torch.autograd.grad(total, [*trained.values()], allow_unused=True), strict=True))


def faults(of: Analysed, parallel: Parallelized) -> Iterator[tuple[int, str]]:
    """What differs from one device: (the place of the sample, what)."""
    given = [of.leaves() for _ in range(parallel.tp)]
    found = at_once.run(parallel, given)
    total = sum(of.total(outputs) for outputs, _ in found)
    leaves = [inputs | weights for inputs, (_, weights) in zip(given, found, strict=True)]
    named = {(rank, key): leaf for rank, each in enumerate(leaves) for key, leaf in each.items()}
    each = gradients(total, named)
    for rank, (outputs, _) in enumerate(found):
        yield from compared(of, parallel, rank, outputs, {key: g for (r, key), g in each.items() if r == rank})


def faults_as_written(of: Analysed, parallel: Parallelized) -> Iterator[tuple[int, str]]:
    """The same, of ranks' programs as users get them."""
    ranks = Ranks(parallel.tp)
    programs = [parallel.rank_program(rank) for rank in range(parallel.tp)]

    def body(rank: int) -> tuple[list[Any], Gradients]:
        program = programs[rank]
        state = program.state_dict | program.constants
        weights = {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.nn.Parameter)}
        module = Interpreted(program.graph_module, ranks.meeting, rank)
        held = [state[spec.target] for spec in program.graph_signature.input_specs if spec.target is not None]
        given = of.leaves()
        outputs = module(*held, *given.values())
        return outputs, gradients(of.total(outputs), given | weights)

    for rank, (outputs, found) in enumerate(ranks.run(body)):
        yield from compared(of, parallel, rank, outputs, found)


def compared(
    of: Analysed, parallel: Parallelized, rank: int, outputs: Sequence[Any], found: Gradients
) -> Iterator[tuple[int, str]]:
    """What one rank has otherwise than one device."""
    stored = {weight.name: weight for weight in parallel.work.local.weights}
    for place, want, got in zip(of.owners, of.outputs, outputs, strict=True):
        text = differs(want.detach(), got.detach(), of.samples[place].exact)
        if text:
            yield place, f"rank {rank}: an output {text}"
    for key, want in of.gradients.items():
        got = found.get(key)
        if key in of.module.stored:
            if key not in stored:
                continue  # nothing reads it
            if want is not None:
                want = torch.from_numpy(take(want.numpy(), stored[key].parts[rank]))
        if want is None or got is None:
            want, got = (torch.zeros(1) if each is None else each.abs().sum().reshape(1) for each in (want, got))
        place = int(key.removesuffix("_left").removesuffix("_right").rpartition("_")[2])
        text = differs(want, got, of.samples[place].exact)
        if text:
            yield place, f"rank {rank}: the gradient of {key.rpartition('_')[0]} {text}"


def differs(want: Any, got: Any, exact: bool, tolerance: float = 1e-5) -> str:
    """What is wrong with a tensor, "" where nothing is."""
    if want.shape != got.shape or want.dtype != got.dtype:
        return f"is {got.dtype} {list(got.shape)} instead of {want.dtype} {list(want.shape)}"
    if not exact or not want.numel() or torch.equal(want, got):
        return ""
    if not _real(want):
        return "has other numbers"
    size = want[want.isfinite()].abs().amax().item() if want.isfinite().any() else 0.0
    if not torch.allclose(want, got, rtol=tolerance, atol=tolerance * (1 + size), equal_nan=True):
        return f"differs by {(want - got).abs().nan_to_num().amax().item():.3g} of {size:.3g}"
    return ""
