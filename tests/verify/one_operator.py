"""One operator on several ranks: its rule's answer is held against a run of the whole operator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from tpcompile.errors import Fault
from tpcompile.verify import lattice
from tpcompile.verify.lattice import Lies, State
from tpcompile.verify.rules import rule_of
from tpcompile.verify.rules.site import Site, Undecided

Array = np.ndarray[Any, np.dtype[Any]]
Cuts = Mapping[int, Sequence[Sequence[int]]]
"""By axis, the whole indices that each rank holds."""


@dataclass
class Operator:
    """An operator with whole inputs ("" for an absent one: None), and what differs between ranks.

    `local` are attributes by name, one value per rank; `zeroed` inputs are zeros on all ranks but the first.
    """

    op: str
    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ""
    local: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    cuts: Mapping[int, Cuts] = field(default_factory=dict)
    zeroed: Sequence[int] = ()
    ranks: int = 2

    def node(self, rank: int | None) -> onnx.NodeProto:
        attributes = dict(self.attributes)
        if rank is not None:
            attributes |= {name: values[rank] for name, values in self.local.items()}
        names = [f"x{at}" if array is not None else "" for at, array in enumerate(self.inputs)]
        outputs = [f"y{at}" for at in range(self.outputs)]
        return helper.make_node(self.op, names, outputs, name="op", domain=self.domain, **attributes)

    def values(self, rank: int | None) -> dict[str, Array]:
        """The inputs of a rank, or whole ones."""
        found = {}
        for at, array in enumerate(self.inputs):
            if array is None:
                continue
            if rank is not None:
                for axis, held in self.cuts.get(at, {}).items():
                    array = np.take(array, held[rank], axis=axis)
                if at in self.zeroed and rank:
                    array = np.zeros_like(array)
            found[f"x{at}"] = np.ascontiguousarray(array) if array.ndim else array
        return found

    def run(self, rank: int | None) -> dict[str, Array]:
        """Inputs and outputs of a rank, or of the whole."""
        feeds = self.values(rank)
        node = self.node(rank)
        graph = helper.make_graph(
            [node],
            "one",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in feeds.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output],
        )
        opsets = [
            helper.make_opsetid("", 23 if self.op == "RMSNormalization" else 21),
            helper.make_opsetid("com.microsoft", 1),
        ]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return feeds | dict(zip(node.output, session.run(None, feeds), strict=True))

    def states(self) -> list[State | None]:
        found: list[State | None] = []
        for at, array in enumerate(self.inputs):
            if array is None:
                found.append(None)
                continue
            axes = [lattice.whole(size, self.ranks) for size in array.shape]
            for axis, held in self.cuts.get(at, {}).items():
                axes[axis] = lattice.cut(array.shape[axis], [np.array(index) for index in held])
            shares = tuple(0 if rank == 0 else None for rank in range(self.ranks))
            found.append(Lies(tuple(axes), frozenset({shares}) if at in self.zeroed else frozenset()))
        return found

    def followed(self, faults: list[Fault]) -> tuple[list[State], list[dict[str, Array]]]:
        """What the rule says, and the values of each rank; `faults` grows by what it finds.

        A wrong cut may not run at all: then the values lack outputs.
        """
        try:
            values = [self.run(rank) for rank in range(self.ranks)]
        except Exception:  # onnxruntime raises a dozen types of its own
            values = [self.values(rank) for rank in range(self.ranks)]
        nodes = [self.node(rank) for rank in range(self.ranks)]
        site = Site(
            nodes,
            self.states(),
            faults=faults,
            value=lambda name: [mine[name] for mine in values],
            stored=lambda name: True,
            asked=lambda name, size: [],
            whole_shape=lambda name: (),
        )
        rule = rule_of(nodes[0])
        assert rule is not None, f"no rule for {self.op}"
        return rule(site), values


def accepts(operator: Operator) -> list[str]:
    """Assert that the rule finds no fault, and that what it says puts the whole result together; how outputs lie."""
    whole = operator.run(None)
    faults: list[Fault] = []
    states, values = operator.followed(faults)
    assert [str(fault) for fault in faults] == []
    for at, state in enumerate(states):
        if isinstance(state, Lies):
            want, parts = whole[f"y{at}"], [mine[f"y{at}"] for mine in values]
            found = together(state, parts, want.shape)
            np.testing.assert_allclose(
                found, want.astype(np.float64), rtol=1e-3, atol=2e-3 * max(1, np.abs(want).max(initial=0))
            )
    return [str(state) if isinstance(state, Lies) else state.value for state in states]


def rejects(operator: Operator) -> str:
    """Assert that the rule finds fault, or cannot tell; what it says."""
    faults: list[Fault] = []
    try:
        states, _ = operator.followed(faults)
        assert faults, f"accepted as {[str(state) for state in states]}"
    except Undecided as undecided:
        return f"undecided: {undecided}"
    except KeyError:  # no results: it does not run, and the faults found before must have told
        assert faults
    return f"{faults[0].code} {faults[0].fact}"


def together(state: Lies, parts: Sequence[Array], shape: Sequence[int]) -> Array:
    """The whole value from the parts of all ranks, as the state says; each term of a sum once."""
    flats = [axis.flat for axis in state.axes]
    assert [flat[0] for flat in flats if flat] == list(shape), f"{state} for a shape of {shape}"
    total: Array = np.zeros(shape)
    covered = np.zeros(shape, bool)
    for terms in state.shares:
        held = [term for term in terms if term is not None]
        assert len(held) == len(set(held)), "copies of a term: this check adds what every rank has"
    for rank, part in enumerate(parts):
        assert part.shape == tuple(axis.lengths[rank] for axis in state.axes)
        where = np.ix_(*[flat[1][rank] for flat in flats if flat])
        if state.shares:
            total[where] += part
        else:
            total[where] = part
        covered[where] = True
    assert covered.all() or not math.prod(shape)
    return total


def blocks(size: int, *sizes: int) -> list[list[int]]:
    """Consecutive blocks, one per rank: blocks(6, 4, 2) or, for equal ones, blocks(6)."""
    each = sizes or (size // 2, size - size // 2)
    ends = np.cumsum(each)
    assert ends[-1] == size
    return [list(range(end - count, end)) for end, count in zip(ends, each, strict=True)]


def heads(counts: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    """The columns of whole heads: `counts[rank]` are the heads that a rank holds."""
    return [[head * width + i for head in mine for i in range(width)] for mine in counts]
