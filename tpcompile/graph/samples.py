"""The two samples of an analysis: a number for every symbol of the inputs, different in each sample.

A dim is static iff it is equal in both. Numbers are chosen so that none divides a static size of the graph and no sum
of two of them resembles one: never 1, which would broadcast.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from tpcompile.graph.program import Sizes

SAMPLES = 2
Term = tuple[str, Callable[[Mapping[str, int]], int]]
"""A size as text, and as a function of the symbols."""


IMAGE = 224
"""From where sizes of images start: convolutions and windows divide them by up to 32 several times."""
ROUND = 32
"""What sizes of images are multiples of where a graph only takes such: windows of patches, halved several times."""
SOUND = 4096
"""From where lengths of sound start: the convolutions of speech models make one of 320 to 640 numbers."""


def _primes(start: int) -> Iterator[int]:
    for n in itertools.count(start | 1, 2):
        if all(n % d for d in range(3, math.isqrt(n) + 1, 2)):
            yield n


class Samples:
    """What each symbol stands for, and which symbols turned out to be one."""

    def __init__(self, static_sizes: set[int]) -> None:
        self._static = {size for size in static_sizes if size > 1}
        self._used: set[int] = set()
        self.symbols: dict[str, Sizes] = {}
        self._found: dict[Sizes, Term | None] = {}
        self.forced: dict[Sizes, Sizes] = {}
        """Computed sizes that the graph only accepts as another: patches of an image that is free by name only."""
        self._spatial: dict[str, int] = {}
        self._round = False
        self.doubts = self._settled = False
        """Whether the walk met sizes that contradict each other, perhaps for the numbers' sake."""
        self._moved: set[str] = set()
        """Symbols that were taken for another size: for a computed one no more than once."""
        self.masks: list[tuple[str, str]] = []
        """Symbols that are the length of a mask and nothing else, each with that of the batch beside it."""
        self._trials = self._try_sums()
        self._count: int | None = None
        """How many different sizes symbols had when numbers were last chosen anew."""

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
        """Make two sizes one: move the symbols that stand for one of them, or else take the fixed one for the other.

        Returns False where that is not possible, or in doubt: a table of 64 positions contradicts samples that reach
        past its end, and no symbol is 64 for that. `settle` says whether to ask again.
        """
        numbers = len(set(a)) == 1, len(set(b)) == 1
        clipped = not any(numbers) and any(x == y for x, y in zip(a, b, strict=True))
        if all(numbers):
            return False
        if any(numbers) or clipped:
            self.doubt()
            if not self._settled or clipped:
                return False
        for old, new in ((b, a), (a, b), *self._within_sums(a, b)):
            moved = [name for name, sizes in self.symbols.items() if sizes == old]
            if moved and not (self._moved.intersection(moved) and new not in self.symbols.values()):
                self._moved.update(moved)
                for name in moved:
                    self.symbols[name] = new
                return True
        computed, fixed = (a, b) if numbers[1] else (b, a)
        if len(set(fixed)) > 1 or computed in self.forced:
            return False
        self.forced[computed] = fixed
        return True

    def doubt(self) -> None:
        """Note that what a walk met may be for the numbers' sake."""
        self.doubts |= not self._settled

    def _within_sums(self, a: Sizes, b: Sizes) -> Iterator[tuple[Sizes, Sizes]]:
        """Symbols that must be one where a = x + r and b = y + r: two caches of one length, each with a name."""
        known = [sizes for sizes in dict.fromkeys(self.symbols.values()) if len(set(sizes)) > 1]
        for x, y in itertools.permutations(known, 2):
            rests = [tuple(p - q for p, q in zip(*pair, strict=True)) for pair in ((a, x), (b, y))]
            if rests[0] == rests[1] and rests[0] in known:
                yield y, x

    @property
    def unround(self) -> bool:
        """Whether sizes of images are still such that nothing divides them."""
        return IMAGE in self._spatial.values() and not self._round

    def settle(self) -> bool:
        """Whether a walk over the graph left doubts, so that another must follow.

        Sizes of images are made round first. Then the numbers are chosen anew, as small as can be, as long as symbols
        turn out to be one; then lengths of masks are taken for sums of others; and only then symbols for numbers.
        """
        if not self.doubts:
            return False
        self.doubts = False
        if self.unround:
            self._round = True
            for name in (name for name, start in self._spatial.items() if start == IMAGE):
                self.symbols[name] = tuple(ROUND * size for size in self._choose(IMAGE // ROUND))
            self._found.clear()
            return True
        count = len(set(self.symbols.values()))
        if self._count is None or count < self._count:
            self._count = count
            self._shrink()
        else:
            self._settled = next(self._trials, True)
        return True

    def _try_sums(self) -> Iterator[bool]:
        """Take each length of a mask for the sum of two other lengths, one after the other."""
        for name, batch in ((name, batch) for name, batch in self.masks if name in self.symbols):
            old = self.symbols[name]
            apart = {old, self.symbols.get(batch), *(sizes for sizes in self.symbols.values() if len(set(sizes)) == 1)}
            known = dict.fromkeys(sizes for key, sizes in self.symbols.items() if sizes not in apart and key[0] != "#")
            for a, b in itertools.combinations(known, 2):
                self.symbols[name] = tuple(x + y for x, y in zip(a, b, strict=True))
                yield False
            self.symbols[name] = old

    def spatial(self, name: str, start: int) -> None:
        """Give a symbol that is the height or width of an image, or the length of a signal, a size to be divided."""
        if name not in self.symbols:
            self.symbols[name] = self._choose(start)
            self._spatial[name] = start

    def _shrink(self) -> None:
        """Choose all numbers anew, smaller: symbols that turned out to be one share theirs."""
        merged: dict[Sizes, list[str]] = {}
        for name, sizes in self.symbols.items():
            if not any(other in self._spatial for other, same in self.symbols.items() if same == sizes):
                merged.setdefault(sizes, []).append(name)
        self.symbols = {name: self.symbols[name] for name in self.symbols if self.symbols[name] not in merged}
        self._used = {size for sizes in self.symbols.values() for size in sizes}
        self._found.clear()
        self._moved.clear()
        for names in merged.values():
            self.symbols |= dict.fromkeys(names, self._choose())

    def _choose(self, start: int = 5) -> Sizes:
        """A new prime per sample, each at least twice the one before: rounding to blocks must not make them agree."""
        taken = [sizes for sizes in self.symbols.values() if len(set(sizes)) > 1]
        for candidate in self._least(start) if self._count is not None else self._spread(start):
            if all(self._apart(candidate, other) for other in taken):
                self._used.update(candidate)
                return candidate
        raise AssertionError("primes do not end")

    def _spread(self, start: int) -> Iterator[Sizes]:
        for first in _primes(start):
            found: list[int] = []
            for _ in range(SAMPLES):
                found.append(next(p for p in _primes(2 * found[-1] if found else first) if self._free(p)))
            yield tuple(found)

    def _least(self, start: int) -> Iterator[Sizes]:
        found: list[int] = []
        for last in filter(self._free, _primes(start)):
            yield from ((*rest, last) for rest in itertools.combinations(found, SAMPLES - 1))
            found.append(last)

    def _free(self, prime: int) -> bool:
        return prime not in self._used and all(size % prime for size in self._static)

    def _apart(self, a: Sizes, b: Sizes) -> bool:
        """Whether sums and differences of two symbols stay clear of static factors and of each other."""
        sums = [x + y for x, y in zip(a, b, strict=True)]
        gaps = [abs(x - y) for x, y in zip(a, b, strict=True)]
        return (self._count is not None or math.gcd(*sums) <= 2) and len(set(sums)) > 1 and len(set(gaps)) > 1

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
        found = self._terms(sizes)
        return None if found is None else found[0]

    def at(self, sizes: Sizes, given: Mapping[str, int]) -> int:
        """The size where symbols have the `given` values; 1 for symbols and sizes nobody knows."""
        found = self._terms(sizes)
        return 1 if found is None else found[1](given)

    def _terms(self, sizes: Sizes) -> Term | None:
        if sizes not in self._found:
            self._found[sizes] = self._search(sizes)
        return self._found[sizes]

    def _search(self, sizes: Sizes) -> Term | None:
        if len(set(sizes)) == 1:
            return str(sizes[0]), lambda given: sizes[0]
        named = {
            found: name
            for name, found in reversed(self.symbols.items())
            if not name.startswith("#") and len(set(found)) > 1
        }
        if sizes in named:
            return named[sizes], lambda given: given.get(named[sizes], 1)
        for found, name in named.items():  # a symbol times something
            if all(size % f == 0 for size, f in zip(sizes, found, strict=True)):
                rest = self._terms(tuple(size // f for size, f in zip(sizes, found, strict=True)))
                if rest is not None:
                    text, value = rest
                    return (
                        f"{name}*{text}" if " " not in text else f"{name}*({text})",
                        partial(_times, name, value),
                    )
        for found, name in named.items():
            for more, other in named.items():
                if all(a + b == size for a, b, size in zip(found, more, sizes, strict=True)):
                    return f"{name} + {other}", partial(_plus, name, other)
            gaps = {size - f for size, f in zip(sizes, found, strict=True)}
            if len(gaps) == 1:
                gap = gaps.pop()
                return f"{name} {'+' if gap > 0 else '-'} {abs(gap)}", partial(_moved, name, gap)
        return None


def _times(name: str, value: Callable[[Mapping[str, int]], int], given: Mapping[str, int]) -> int:
    return given.get(name, 1) * value(given)


def _plus(name: str, other: str, given: Mapping[str, int]) -> int:
    return given.get(name, 1) + given.get(other, 1)


def _moved(name: str, gap: int, given: Mapping[str, int]) -> int:
    return given.get(name, 1) + gap
