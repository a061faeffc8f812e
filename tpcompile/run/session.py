"""A bundle as a session, called as onnxruntime's: whole inputs in, whole outputs out, whatever the number of ranks.

Under mpirun every rank makes the session and calls it with the same inputs. Started from plain Python, the session
starts its ranks itself and talks to them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from tpcompile.bundle.manifest import IOEntry, Manifest
from tpcompile.errors import refuse
from tpcompile.run.backends import BACKENDS, Backend
from tpcompile.run.rank import load
from tpcompile.run.tensors import ORT_SPELLING, Array

LIMIT_S = 60.0
LOAD_LIMIT_S = 600.0


@dataclass(frozen=True)
class NodeArg:
    """An input or output, as onnxruntime describes it: `type` is "tensor(float)", `shape` ints and symbols."""

    name: str
    type: str
    shape: list[int | str]


class Runner(Protocol):
    """What runs a bundle: this process as one of its ranks, or ranks of our own in the background."""

    manifest: Manifest

    @property
    def backend(self) -> Backend | str: ...

    def run(self, output_names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]: ...

    def decode(self, feeds: Mapping[str, Array], steps: int) -> dict[str, Array]: ...

    def extend(self, sequence: int, output_names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]: ...

    def forget(self, sequence: int) -> None: ...

    def close(self) -> None: ...


class InferenceSession:
    """Runs the bundle in folder `bundle`.

    `backend` is "engine", "cuda" or "cpu", or "auto" for the best that all ranks can; `cuda_graphs` lets engines
    replay steps of equal shapes. `timeout_s` is how long a rank may wait for another (0: for ever), `load_timeout_s`
    the same while loading; `prepack` lets ONNX Runtime copy weights into its own layout (more memory and a slower
    start, faster prefill).

    Raises:
        Refused: TP45x the bundle; TP60x the ranks cannot start or load it; TP65x the backend cannot run here.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        *,
        backend: str = "auto",
        timeout_s: float = LIMIT_S,
        load_timeout_s: float = LOAD_LIMIT_S,
        prepack: bool = False,
        cuda_graphs: bool = False,
    ) -> None:
        if backend not in BACKENDS:
            raise refuse("TP650", f"backend {backend!r}", "there is no such backend", f"Use {', '.join(BACKENDS)}")
        self._runner: Runner
        if "OMPI_COMM_WORLD_SIZE" in os.environ or "PMIX_RANK" in os.environ or _is_for_one(Path(bundle)):
            self._runner = load(
                Path(bundle), backend=backend, timeout_s=timeout_s, load_timeout_s=load_timeout_s, prepack=prepack,
                cuda_graphs=cuda_graphs,
            )  # fmt: skip
        else:
            from tpcompile.run.background import BackgroundRanks

            self._runner = BackgroundRanks(
                Path(bundle), backend=backend, timeout_s=timeout_s, load_timeout_s=load_timeout_s, prepack=prepack,
                cuda_graphs=cuda_graphs,
            )  # fmt: skip

    @property
    def backend(self) -> str:
        """What computes, and what was passed over for it and why: "cpu (no engine: …; no cuda: …)"."""
        return str(self._runner.backend)

    @property
    def manifest(self) -> Manifest:
        """What the bundle says of itself."""
        return self._runner.manifest

    def get_inputs(self) -> list[NodeArg]:
        """The inputs of the source model, in its order."""
        return [_node_arg(name, entry) for name, entry in self.manifest.inputs.items()]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs of the source model, in its order."""
        return [_node_arg(name, entry) for name, entry in self.manifest.outputs.items()]

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """Whole outputs for whole inputs; `output_names` None for all outputs.

        Raises:
            Refused: TP621 inputs missing, unknown, or of another type or shape than the model's.
            RankFailed: a rank failed.
        """
        wanted = list(self.manifest.outputs) if output_names is None else list(output_names)
        found = self._runner.run(wanted, _arrays(feeds))
        return [found[name] for name in wanted]

    def extend(
        self, sequence: int, feeds: Mapping[str, Array], output_names: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Feed the next tokens of a sequence, whose caches are kept on the ranks.

        `sequence` is a number of your choice: the first call with it begins a sequence, `forget` ends it, and there
        may be many side by side. `feeds` holds the tokens, [batch, count]; mask and positions may be left out. Returns
        whole outputs by name: those of `output_names`, or all that are no caches.

        Raises:
            Refused: TP621 an input that does not fit; TP622, TP623 as for `decode`.
        """
        kept = {pair.output for pair in self.manifest.state}
        wanted = [name for name in self.manifest.outputs if name not in kept] if output_names is None else output_names
        return self._runner.extend(sequence, wanted, _arrays(feeds))

    def forget(self, sequence: int) -> None:
        """End a sequence and free its caches. Refuses (TP625) one that was never begun, or has ended."""
        self._runner.forget(sequence)

    def decode(self, feeds: Mapping[str, Array], steps: int) -> dict[str, Array]:
        """Feed the likeliest token back `steps` times, caches kept on the ranks.

        `feeds` is the prompt: the input of role tokens, [batch, seq]; mask, positions and caches may be left out.
        Returns "tokens" (int64 [batch, steps]) and the last step's whole outputs that are no caches.

        Raises:
            Refused: TP622 the bundle has no roles tokens and logits; TP623 a cache that cannot start empty.
        """
        return self._runner.decode(_arrays(feeds), steps)

    def close(self) -> None:
        """End the ranks that this session started; the session cannot be used any more."""
        self._runner.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_for_one(bundle: Path) -> bool:
    return Manifest.read(bundle).world_size == 1


def _node_arg(name: str, entry: IOEntry) -> NodeArg:
    return NodeArg(name, f"tensor({ORT_SPELLING.get(entry.dtype, entry.dtype)})", list(entry.shape))


def _arrays(feeds: Mapping[str, Any]) -> dict[str, Array]:
    """Inputs as arrays: lists of numbers are taken as numpy takes them."""
    return {name: np.asarray(value) for name, value in feeds.items()}
