"""What a rank's program is run on: given arrays or seeded random ones, cut where the program takes a part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sympy
import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from tpcompile.bundle.manifest import Manifest
from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.torch.guards import holds
from tpcompile.torch.tensors import name_of

CHOSEN = (2, 8, 16)
"""Sizes that random inputs have, where the program leaves them open: batch, sequence, and what else there is."""
LARGEST = 64
SEED = 0

Sizes = dict[Any, int]
"""Values of the symbols in a program's shapes."""


@dataclass
class Feeds:
    """The inputs of one rank's program.

    Args:
        program: the rank's.
        manifest: says which inputs are cut, and how.
        rank: tensor-parallel rank.
    """

    program: ExportedProgram
    manifest: Manifest
    rank: int
    shapes: dict[str, tuple[Any, ...]] = field(init=False)
    dtypes: dict[str, torch.dtype] = field(init=False)

    def __post_init__(self) -> None:
        taken = set(self.program.graph_signature.user_inputs)
        inputs = {node.name: node.meta["val"] for node in self.program.graph.find_nodes(op="placeholder")}
        tensors = {name: fake for name, fake in inputs.items() if name in taken and isinstance(fake, Tensor)}
        self.shapes = {name: self._whole(name, fake) for name, fake in tensors.items()}
        self.dtypes = {name: fake.dtype for name, fake in tensors.items()}

    def arguments(self, files: Mapping[str, Path], device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) for the program's module: arrays from `.npy` files by input, random ones for the others.

        All ranks draw alike. Integers are 0 or 1, which every vocabulary and mask has; booleans and masks are all set.

        Raises:
            Refused: TP609 a file cannot be read; TP621 it is no input's, or has another type or shape; TP756 no sizes
                up to 64 satisfy what the program says of them.
        """
        given = {name: self._read(name, path) for name, path in files.items()}
        sizes = self._sizes(given)
        made = {name: given[name] if name in given else self._random(name, number, sizes)
                for number, name in enumerate(self.shapes)}  # fmt: skip
        leaves: list[Any] = []
        for spec in self.program.graph_signature.input_specs:
            if spec.kind == InputKind.USER_INPUT:
                if isinstance(spec.arg, ConstantArgument):
                    leaves.append(spec.arg.value)
                elif spec.arg.name in made:
                    leaves.append(self._cut(spec.arg.name, made[spec.arg.name]).to(device))
                else:
                    leaves.append(sizes[self._number(spec.arg.name)])
        args, kwargs = pytree.tree_unflatten(leaves, self.program.call_spec.in_spec)
        return args, kwargs

    def _whole(self, name: str, fake: Tensor) -> tuple[Any, ...]:
        """The shape of the whole input: ints, and expressions of sizes."""
        shape: list[Any] = [size.node.expr if isinstance(size, torch.SymInt) else size for size in fake.shape]
        place = self.manifest.inputs[name].placement if name in self.manifest.inputs else None
        if place is not None:
            shape[place.axis] = place.global_size
        return tuple(shape)

    def _number(self, name: str) -> Any:
        """The symbol of an input that is a size, not a tensor."""
        (node,) = (node for node in self.program.graph.nodes if node.name == name)
        return node.meta["val"].node.expr

    def _read(self, name: str, path: Path) -> Tensor:
        if name not in self.shapes:
            raise refuse("TP621", f"input {name}", "is no input of this model", f"It has {', '.join(self.shapes)}")
        try:
            array = np.load(path, allow_pickle=False)
            tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
        except (OSError, ValueError, EOFError, TypeError, AttributeError) as error:
            raise refuse("TP609", str(path), f"cannot be read as .npy ({error})",
                         "Write it with numpy.save(FILE, array)") from None  # fmt: skip
        dtype, shape = self.dtypes[name], self.shapes[name]
        wanted = f"Give {name_of(dtype)} [{', '.join(map(str, shape))}]"
        if dtype == torch.bfloat16 and tensor.dtype == torch.float32:  # numpy has no bfloat16
            tensor = tensor.bfloat16()
        faults = []
        if tensor.dtype != dtype:
            faults.append(f"is of type {name_of(tensor.dtype)}")
        if tensor.dim() != len(shape):
            faults.append(f"has shape {list(tensor.shape)}")
        else:
            pairs = enumerate(zip(tensor.shape, shape, strict=True))
            faults += [f"has {found} along axis {axis}" for axis, (found, size) in pairs
                       if isinstance(size, int) and size != found]  # fmt: skip
        raise_all(Fault("TP621", f"input {name}", fact, wanted) for fact in faults)
        return tensor

    def _sizes(self, given: Mapping[str, Tensor]) -> Sizes:
        """A value for every symbol: those of given arrays, then others that fit what the program says of sizes."""
        sizes: Sizes = {}
        for name, tensor in given.items():
            for size, found in zip(self.shapes[name], tensor.shape, strict=True):
                if not isinstance(size, int) and size.is_symbol:
                    sizes.setdefault(size, found)
        free = {symbol: None for shape in self.shapes.values() for size in shape if not isinstance(size, int)
                for symbol in sorted(size.free_symbols, key=str)}  # fmt: skip
        chosen = self._choose([symbol for symbol in free if symbol not in sizes], sizes)
        if chosen is None:
            raise refuse("TP756", "inputs", "no sizes of random inputs fit what the program says of them",
                         "Give inputs with --input NAME=FILE.npy")  # fmt: skip
        return chosen

    def _choose(self, free: Sequence[Any], sizes: Sizes) -> Sizes | None:
        """`sizes` with values for the symbols `free`, None where there are none that fit."""
        if not free:
            return sizes if self._fit(sizes) else None
        symbol, *others = free
        bounds = self.program.range_constraints.get(symbol)
        low, high = (int(bounds.lower), bounds.upper) if bounds is not None else (1, LARGEST)
        usual = CHOSEN[min(len(sizes), len(CHOSEN) - 1)]
        for value in [usual, *range(max(low, 1), LARGEST + 1)]:
            if low <= value <= high:
                tried = {**sizes, symbol: value}
                found = self._choose(others, tried) if self._fit(tried) else None
                if found is not None:
                    return found
        return None

    def _fit(self, sizes: Sizes) -> bool:
        shapes = {path: [_number_of(size, sizes) for size in self.shapes[name]] for name, path in self._paths()}
        return all(holds(guard, shapes) for guard in self.program._guards_code)

    def _paths(self) -> Iterator[tuple[str, str]]:
        """The inputs that are tensors, each with its path in the arguments, as guards spell it."""
        call = self.program.module_call_graph[0].signature
        names = list(call.forward_arg_names or []) if call is not None else []
        in_spec = self.program.call_spec.in_spec
        leaves = pytree.tree_leaves_with_path(pytree.tree_unflatten(list(range(in_spec.num_leaves)), in_spec))
        for (path, _), name in zip(leaves, self.program.graph_signature.user_inputs, strict=True):
            if name in self.shapes:
                place = path[1]
                if isinstance(place, pytree.SequenceKey):
                    root = names[place.idx] if place.idx < len(names) else ""
                else:
                    root = place.key if isinstance(place, pytree.MappingKey) else ""
                yield str(name), f"L['{root}']{pytree.keystr(path[2:])}"

    def _random(self, name: str, number: int, sizes: Sizes) -> Tensor:
        shape = [_number_of(size, sizes) or 0 for size in self.shapes[name]]
        dtype, generator = self.dtypes[name], torch.Generator().manual_seed(SEED + number)
        if dtype == torch.bool or (name == self.manifest.roles.get("mask") or "mask" in name):
            return torch.ones(shape, dtype=dtype)
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(dtype)
        return torch.randint(0, 2, shape, generator=generator).to(dtype)

    def _cut(self, name: str, whole: Tensor) -> Tensor:
        place = self.manifest.inputs[name].placement if name in self.manifest.inputs else None
        if place is None:
            return whole
        pieces = [whole.narrow(place.axis, low, high - low) for low, high in place.ranges[self.rank]]
        return torch.cat(pieces, place.axis)


def _number_of(size: Any, sizes: Sizes) -> int | None:
    """The value of a size, None where some of its symbols have none yet."""
    if isinstance(size, int):
        return size
    found = size.xreplace({symbol: sympy.Integer(value) for symbol, value in sizes.items()})
    return int(found) if found.is_number else None
