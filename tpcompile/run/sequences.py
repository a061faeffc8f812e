"""Sequences that are fed piece by piece, each with caches that stay on the rank that made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpcompile.errors import refuse
from tpcompile.run import decode
from tpcompile.run.executor import Value
from tpcompile.run.tensors import Array

if TYPE_CHECKING:
    from tpcompile.run.rank import RankRunner


@dataclass
class _Held:
    """A sequence between two calls: its last whole inputs, and its caches, as the model left them or aside."""

    whole: dict[str, Array]
    caches: dict[str, Value]
    aside: dict[str, Array] | None = None


class Sequences:
    """The sequences of one rank. Every call is made by all ranks together, with the same arguments.

    A model may write its next outputs where the last ones lie, so caches are copied aside before it serves another.
    """

    def __init__(self, runner: RankRunner) -> None:
        self.runner = runner
        self._held: dict[int, _Held] = {}

    def extend(self, key: int, output_names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Whole outputs by name for the next tokens of the sequence `key`, which the first call begins.

        Raises:
            Refused: TP621 an input that does not fit; TP622, TP623 as for decoding.
        """
        runner, manifest = self.runner, self.runner.manifest
        decode.check_roles(manifest, 1)
        held = self._held.get(key)
        whole = decode.prompt(manifest, feeds) if held is None else decode.following(manifest, held.whole, feeds)
        runner.check_outputs(output_names)
        self.put_aside(but=key)
        caches = self._caches(held, whole)
        outputs = runner.step({name: runner.local(name, array) for name, array in whole.items()} | caches)
        left = {pair.input: outputs[pair.output] for pair in manifest.state}
        self._held[key] = _Held(whole, left)
        return {name: runner.whole(name, outputs[name]) for name in output_names}

    def _caches(self, held: _Held | None, whole: dict[str, Array]) -> dict[str, Value]:
        """The caches of a sequence as the model takes them; those of a new one are taken out of `whole`."""
        if held is None:
            names = [pair.input for pair in self.runner.manifest.state]
            return {name: self.runner.local(name, whole.pop(name)) for name in names}
        if held.aside is None:
            return held.caches
        return {name: self.runner.model.memory.from_numpy(array) for name, array in held.aside.items()}

    def put_aside(self, but: int | None = None) -> None:
        """Copy the caches that the model left last, before it is used for anything else than the sequence `but`."""
        memory = self.runner.model.memory
        for key, held in self._held.items():
            if key != but and held.aside is None:
                held.aside = {name: memory.to_numpy(value) for name, value in held.caches.items()}
                held.caches = {}

    def forget(self, key: int) -> None:
        """End a sequence. Refuses (TP625) one that was never begun, or has ended."""
        if self._held.pop(key, None) is None:
            raise refuse("TP625", f"sequence {key}", "there is no such sequence", "Begin it with extend")
