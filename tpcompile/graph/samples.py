"""The two samples of an analysis: a number for every symbol of the inputs, different in each sample.

A dim is static iff it is equal in both. Numbers are chosen so that none divides a static size of the graph and no sum
of two of them resembles one: never 1, which would broadcast.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator

from tpcompile.graph.program import Sizes

SAMPLES = 2


def _primes() -> Iterator[int]:
    for n in itertools.count(5, 2):
        if all(n % d for d in range(3, math.isqrt(n) + 1, 2)):
            yield n


class Samples:
    """What each symbol stands for, and which symbols turned out to be one."""

    def __init__(self, static_sizes: set[int]) -> None:
        self._static = {size for size in static_sizes if size > 1}
        self._free = (p for p in _primes() if all(size % p for size in self._static))
        self.symbols: dict[str, Sizes] = {}
        self.forced: dict[Sizes, Sizes] = {}
        """Computed sizes that the graph only accepts as another: the patches of an image whose size is free by name only."""

    def symbol(self, name: str) -> Sizes:
        """The sizes of a symbol, or of a sum or product of symbols as exporters spell them ("past + 1")."""
        if name in self.symbols:
            return self.symbols[name]
        try:
            tree = ast.parse(name, mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            tree = ast.Name(name)
        if isinstance(tree, ast.BinOp):
            found = self._expression(tree)
            if found is not None:
                return found
        self.symbols[name] = self._choose()
        return self.symbols[name]

    def unnamed(self, value: str, axis: int) -> Sizes:
        """Sizes for an axis without a name, or one that depends on data."""
        return self.symbol(f"#{value}.{axis}")

    def bind(self, a: Sizes, b: Sizes) -> bool:
        """Make two sizes that must be equal one: move the symbols that stand for one, or else take the fixed one for the other."""
        for old, new in ((b, a), (a, b)):
            moved = [name for name, sizes in self.symbols.items() if sizes == old]
            if moved:
                for name in moved:
                    self.symbols[name] = new
                return True
        computed, fixed = (a, b) if len(set(b)) == 1 else (b, a)
        if len(set(fixed)) > 1 or len(set(computed)) == 1 or computed in self.forced:
            return False
        self.forced[computed] = fixed
        return True

    def _choose(self) -> Sizes:
        taken = [sizes for sizes in self.symbols.values() if len(set(sizes)) > 1]
        for _ in range(1000):
            candidate = tuple(itertools.islice(self._free, SAMPLES))
            if all(self._apart(candidate, other) for other in taken):
                return candidate
        raise ValueError("no sizes are left for another symbol")

    def _apart(self, a: Sizes, b: Sizes) -> bool:
        """Whether sums and differences of two symbols stay clear of static factors and of each other."""
        sums = [x + y for x, y in zip(a, b, strict=True)]
        gaps = [abs(x - y) for x, y in zip(a, b, strict=True)]
        return math.gcd(*sums) <= 2 and len(set(sums)) > 1 and len(set(gaps)) > 1

    def _expression(self, tree: ast.expr) -> Sizes | None:
        if isinstance(tree, ast.Name):
            return self.symbol(tree.id)
        if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
            return (tree.value,) * SAMPLES
        if isinstance(tree, ast.BinOp):
            left, right = self._expression(tree.left), self._expression(tree.right)
            if left is None or right is None:
                return None
            pairs = list(zip(left, right, strict=True))
            if isinstance(tree.op, ast.Add):
                return tuple(a + b for a, b in pairs)
            if isinstance(tree.op, ast.Sub):
                return tuple(a - b for a, b in pairs)
            if isinstance(tree.op, ast.Mult):
                return tuple(a * b for a, b in pairs)
            if isinstance(tree.op, ast.FloorDiv | ast.Div):
                return tuple(a // b for a, b in pairs) if all(b for _, b in pairs) else None
        return None

    def describe(self, sizes: Sizes) -> str | None:
        """The sizes as an expression in symbols ("4096", "batch*seq", "past + seq"), None where none is found."""
        if len(set(sizes)) == 1:
            return str(sizes[0])
        named = [(name, found) for name, found in self.symbols.items() if "#" not in name and len(set(found)) > 1]
        for name, found in named:
            if found == sizes:
                return name
        for name, found in named:  # a symbol times something
            if all(size % f == 0 for size, f in zip(sizes, found, strict=True)):
                rest = self.describe(tuple(size // f for size, f in zip(sizes, found, strict=True)))
                if rest is not None:
                    return f"{name}*{rest}" if " + " not in rest else f"{name}*({rest})"
        for (name, found), (other, more) in itertools.combinations(named, 2):
            if all(a + b == size for a, b, size in zip(found, more, sizes, strict=True)):
                return f"{name} + {other}"
        for name, found in named:
            gaps = {size - f for size, f in zip(sizes, found, strict=True)}
            if len(gaps) == 1 and (gap := gaps.pop()):
                return f"{name} {'+' if gap > 0 else '-'} {abs(gap)}"
        return None
