"""A small torch function on which the rule of an operator is proved, as data: read without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

SIZES: Mapping[str, int] = {"b": 2, "s": 3}
"""What symbols stand for when a sample runs; no analysis has seen these."""
SEEN: Mapping[str, int] = {"b": 4, "s": 5}
"""What they stand for in the example that is exported: anything that is not 1 nor another size of a sample."""


@dataclass(frozen=True)
class Tensor:
    """One input of a sample.

    `axes` are numbers or symbols; `kind` is "input", "weight" (trained) or "buffer"; `dtype` a torch type's name.
    """

    name: str
    axes: tuple[int | str, ...]
    kind: str
    dtype: str

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(axis if isinstance(axis, int) else sizes[axis] for axis in self.axes)


@dataclass(frozen=True, eq=False)
class Sample:
    """A function around one operator.

    Attributes:
        target: the operator of aten whose reading and rule it proves, with its overload if that is not the default:
            "softmax.int"; "library::operator" of another library.
        inputs: what it is given, "x: b 6 10, w: 7 10 weight, ids: b s int". Of type float32 unless a type's name is
            among the words; "weight" is trained, "buffer" is stored and not.
        code: a call's arguments, "(x, -1)", or an expression of aten, torch, the inputs and the symbols, perhaps after
            assignments and ";".
        free: the dims along which the operator may be cut without any collective, as "x[2]": axis 2 of input x;
            "x[2].1" is the second factor or part of that axis. Operands that are no inputs are called "t0", "t1" … by
            their place, outputs "y", or "y0", "y1" … where there are several. A dim that stands in several places has
            the name of the first, operands before outputs.
        sums: the dims along which a cut leaves a partial sum. All other static dims must be whole.
        passes: the inputs from which a pending sum passes through the operator, if it is pending there alone.
        values: the range [low, high) of random values by name; by default normal numbers of both signs, for integers
            from 0 to 4.
        sizes: what symbols stand for when it runs.
        trains: False where the operator has no gradient.
        exact: False where numbers are drawn, or left as memory was: only shapes and types are compared then.
        note: tells samples of one operator apart.
    """

    target: str
    inputs: str
    code: str
    free: str = ""
    sums: str = ""
    passes: str = ""
    note: str = ""
    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=lambda: SIZES)
    trains: bool = True
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.target} {self.note}".strip()

    @property
    def overload(self) -> str:
        """The operator's full name: "aten.relu.default"."""
        name = self.target.replace("::", ".") if "::" in self.target else f"aten.{self.target}"
        return name + ("" if "." in self.target else ".default")

    def tensors(self) -> Iterator[Tensor]:
        """The inputs, in order."""
        for text in filter(None, self.inputs.split(",")):
            name, _, words = text.partition(":")
            axes: list[int | str] = []
            kind, dtype = "input", "float32"
            for word in words.split():
                if word in ("weight", "buffer"):
                    kind = word
                elif word in ("int", "bool", "int64", "int32", "float64", "float16", "bfloat16", "complex64"):
                    dtype = "int64" if word == "int" else word
                else:
                    axes.append(int(word) if word.isdigit() else word)
            yield Tensor(name.strip(), tuple(axes), kind, dtype)
