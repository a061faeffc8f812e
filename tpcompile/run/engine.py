"""One rank as a TensorRT engine that holds its collectives: read, given NCCL's communicator, tried, and run.

What goes wrong without a sound is asked for. A communicator that is not taken makes collectives do nothing: each rank
says whether it was, a small engine that holds the same kinds of collectives is run with numbers that are known, and
after the first step ranks compare what they computed.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from tpcompile.bundle.manifest import EngineEntry, Manifest
from tpcompile.errors import Fault, RankFailed, raise_all, refuse
from tpcompile.run.agreement import together
from tpcompile.run.bound_engine import BoundEngine
from tpcompile.run.cuda import DeviceArray, Gpu
from tpcompile.run.dump import Dump
from tpcompile.run.executor import Memory
from tpcompile.run.mpi import World
from tpcompile.run.nccl import Nccl
from tpcompile.run.self_test import SelfTest
from tpcompile.run.tensors import NUMPY_OF, TYPES, Array
from tpcompile.run.watchdog import Watchdog, without_python

SAMPLE = 64
"""Numbers from each end of an output that ranks compare after the first step."""
SAME_WITHIN = 0.05
"""What may lie between two ranks' numbers, of the largest: their kernels may differ, but not by as much as a sum does
that was not made."""


class EngineRunner:
    """A `RankModel` of one engine. All ranks make theirs, then `join` together, before any runs.

    Raises:
        Refused: TP608 the file is not the one that bundle.json was written with; TP653 the library cannot read it.
    """

    dump: Dump | None = None

    def __init__(
        self,
        folder: Path,
        entry: EngineEntry,
        manifest: Manifest,
        world: World,
        watchdog: Watchdog,
        gpu: Gpu,
        *,
        cuda_graphs: bool,
    ) -> None:
        self.entry, self.manifest, self.world, self.watchdog, self.gpu = entry, manifest, world, watchdog, gpu
        self.memory: Memory = gpu
        library = importlib.import_module(entry.library)
        plan = (folder / entry.file).read_bytes()
        if hashlib.sha256(plan).hexdigest() != entry.sha256:
            raise refuse("TP608", str(folder / entry.file), "is not the file that bundle.json was written with",
                         "Files of different builds are mixed: copy the whole bundle again")  # fmt: skip
        self.bound = BoundEngine(library, plan, gpu, f"engine {entry.file}", entry.profiles, graphs=cuda_graphs)
        del plan
        self.meets = world.size > 1 and entry.collectives > 0
        self.self_test = SelfTest(library, gpu, manifest, world) if self.meets else None
        self._agreed = not self.meets
        self._warm: set[int] = set()
        self.bound.reserve([pair.output for pair in manifest.state])

    def contradiction(self, manifest: Manifest, rank: int) -> str | None:
        """Where bundle.json says something else of inputs and outputs than the engine of `rank`."""
        for side, listed in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
            found = {tensor.name: tensor for tensor in self.bound.tensors if tensor.is_input is (side == "inputs")}
            if not found.keys() <= listed.keys() or (side == "outputs" and found.keys() != listed.keys()):
                return f"lists {side} {', '.join(listed)}, and the engine of rank {rank} has {', '.join(found)}"
            for name, tensor in found.items():
                if TYPES[listed[name].dtype][0] != tensor.element:
                    theirs = NUMPY_OF[tensor.element].name
                    return f"lists {name} as {listed[name].dtype}, and the engine of rank {rank} has {theirs}"
        return None

    def calls(self) -> list[tuple[str, list[int], int]]:
        """Its collectives run within the engine: here only how many there are."""
        return [(f"{self.entry.library} engine with {self.entry.collectives} collectives", [], -1)]

    def join(self) -> None:
        """Communicators, on all ranks at once; then the self-test, before anything else is run.

        Raises:
            Refused: TP654 an engine did not take the communicator; TP655 the self-test gave wrong numbers.
        """
        if self.self_test is None:
            return
        nccl = Nccl(self.gpu, self.world, self.watchdog)
        nccl.join([()])
        for bound in (self.bound, *self.self_test.engines):
            self._give(bound, nccl.of(()).ptr)
        # All have answered, so all are ready: none enqueues while another still loads.
        self.watchdog.waits("the self-test of collectives", loading=True)
        with without_python(self.watchdog.load_limit_s):
            outputs = self.self_test.run()
        self.watchdog.goes_on()
        self._all_well("the self-test of collectives", self.self_test.faults(outputs))
        self.self_test = None

    def _give(self, bound: BoundEngine, communicator: int) -> None:
        """Give the communicator to an engine, on all ranks at once: it is a handshake."""
        self.watchdog.waits(f"giving the communicator to {bound.where}", loading=True)
        with without_python(self.watchdog.load_limit_s):
            taken = bound.take_communicator(communicator)
        self.watchdog.goes_on()
        remedy = "Its collectives would do nothing: build the engines again, or use --backend cuda"
        fault = Fault("TP654", bound.where, f"did not take NCCL's communicator ({bound.said()})", remedy)
        self._all_well("what became of the communicator", [] if taken else [fault])

    def _all_well(self, what: str, faults: Iterable[Fault]) -> None:
        """Refuse on all ranks where one has faults."""
        together(self.world, self.watchdog, what, lambda: raise_all(faults), lambda _: None)

    def run(self, feeds: Mapping[str, DeviceArray]) -> dict[str, DeviceArray]:
        profile = self.bound.fitting_profile(feeds)
        loading = profile not in self._warm  # kernels may be compiled when a profile is first used
        self._warm.add(profile)
        self.watchdog.waits(f"asking for the step of {self.bound.where}", loading=loading)
        with without_python(self.watchdog.load_limit_s if loading else 0):
            made = self.bound.run(feeds)
        self.watchdog.goes_on()
        self.gpu.mark(f"the {self.entry.collectives} collectives of {self.bound.where}")
        if loading and self.meets:
            self.watchdog.waits(f"the first step of {self.bound.where} with its profile {profile}", loading=True)
            self.world.comm.Barrier()
            self.watchdog.goes_on()
        self.gpu.finish()
        if not self._agreed:
            self._agreed = True
            self._compare(made)
        return made

    def _compare(self, made: Mapping[str, DeviceArray]) -> None:
        """Compare with rank 0's the numbers that all ranks should have alike, after the first step.

        Whole numbers are left out: which of two close ones is the largest may be a matter of kernels.

        Raises:
            RankFailed: TP659 they differ.
        """
        outputs = self.manifest.outputs.items()
        whole = [name for name, entry in outputs if entry.placement is None and "float" in entry.dtype]
        mine = {name: _sample(self.gpu.to_numpy(made[name])) for name in whole}
        self.watchdog.waits("comparing outputs after the first step")
        said = self.world.exchange({name: sample.tolist() for name, sample in mine.items()})
        self.watchdog.goes_on()
        for rank, other in enumerate(said):
            for name in whole:
                ours, theirs = (np.array(sample[name], np.float64) for sample in (said[0], other))
                if not alike(ours, theirs):
                    fact = f"rank {rank} has other numbers in output '{name}' than rank 0 after the first step"
                    remedy = "Its collectives did not do their work: use --backend cuda, and report it with the bundle"
                    raise RankFailed(Fault("TP659", self.bound.where, fact, remedy))


def _sample(array: Array) -> Array:
    """Numbers from both ends, as float64."""
    flat = array.reshape(-1)
    return np.concatenate([flat[:SAMPLE], flat[-SAMPLE:]]).astype(np.float64)


def alike(ours: Array, theirs: Array) -> bool:
    """Whether two ranks computed the same, but for their kernels."""
    finite = np.isfinite(ours)
    if ours.shape != theirs.shape or not np.array_equal(finite, np.isfinite(theirs)):
        return False
    scale = np.abs(ours[finite]).max(initial=0.0)
    return bool((np.abs(ours[finite] - theirs[finite]) <= SAME_WITHIN * scale).all())
