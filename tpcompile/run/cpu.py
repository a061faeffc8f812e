"""Segments on the CPU: ONNX Runtime, values in plain memory, MPI in that memory between segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort  # type: ignore[import-untyped]

from tpcompile.errors import refuse
from tpcompile.run import tensors
from tpcompile.run.mpi import World, perform
from tpcompile.run.tensors import ELEMENT_OF_ORT, Array
from tpcompile.run.watchdog import Watchdog
from tpcompile.targets.collectives import Collective

ERROR_LEVEL = 3


class CpuExecutor:
    """An `Executor` whose values are OrtValues in plain memory; `folder` holds the weights of what it loads."""

    keeps_halves = False

    def __init__(self, folder: Path, world: World, *, prepack: bool) -> None:
        self.folder, self.world = folder, world
        self._options = _session_options(folder, world, prepack)

    def load(self, part: onnx.ModelProto, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> CpuSegment:
        remedy = "Check that the source model loads there: the CPU lacks kernels for some operators and types"
        session = make_session(part, self.folder, self._options, ["CPUExecutionProvider"], remedy)
        return CpuSegment(session, inputs, outputs)

    def join(self, collectives: Sequence[Collective], watchdog: Watchdog) -> None:
        """MPI's communicators are there already."""

    def perform(self, found: Collective, value: ort.OrtValue, *, owned: bool, label: str) -> ort.OrtValue:
        return perform(self.world, found, value, owned=owned)

    def finish(self) -> None:
        """Every call has done its work when it returns."""

    def from_numpy(self, array: Array) -> ort.OrtValue:
        return tensors.from_numpy(array)

    def to_numpy(self, value: ort.OrtValue) -> Array:
        return tensors.to_numpy(value)

    def view(self, value: ort.OrtValue) -> Array:
        return tensors.view(value)


class CpuSegment:
    """A session with its binding."""

    def __init__(self, session: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self.session, self.inputs, self.outputs = session, inputs, outputs
        self.binding = session.io_binding()
        self.made = made_by(session)

    def run(self, values: Mapping[str, ort.OrtValue]) -> Iterable[ort.OrtValue]:
        """Bind each input where it lies, let ONNX Runtime place the outputs anew, and compute."""
        binding = self.binding
        for name in self.inputs:
            binding.bind_ortvalue_input(name, values[name])
        for name in self.outputs:
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        made: Iterable[ort.OrtValue] = binding.get_outputs()
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()  # else the next run would write into memory that is still in use
        return made


def make_session(part: onnx.ModelProto, folder: Path, options: Any, providers: Sequence[Any], remedy: str) -> Any:
    """An ONNX Runtime session of `part`. Refuses (TP606), with `remedy`, what cannot be loaded."""
    try:
        return ort.InferenceSession(part.SerializeToString(), options, providers=providers)
    except Exception as error:
        fact = f"ONNX Runtime {ort.__version__} cannot load this model ({error})"
        raise refuse("TP606", str(folder), fact, remedy) from None


def made_by(session: Any) -> list[tuple[str, int, list[int | str | None]]]:
    """What a session gives. Refuses (TP606) what is no tensor."""
    found = []
    for output in session.get_outputs():
        if output.type not in ELEMENT_OF_ORT:
            fact = f"is of type {output.type}, which cannot pass between segments"
            raise refuse("TP606", output.name, fact, "Keep sequences, optionals and strings away from collectives")
        found.append((output.name, ELEMENT_OF_ORT[output.type], output.shape))
    return found


def base_options(folder: Path, *, prepack: bool) -> Any:
    """Settings of every session: weights mapped from the bundle's folder, no copy of them, few words."""
    options = ort.SessionOptions()
    options.log_severity_level = ERROR_LEVEL
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def _session_options(folder: Path, world: World, prepack: bool) -> Any:
    """No spinning while a rank waits, memory shared between segments."""
    shares = world.shares_threads and world.threads > 1
    _prepare_process(world.threads if shares else 0)
    options = base_options(folder, prepack=prepack)
    options.use_per_session_threads = not shares
    options.intra_op_num_threads = world.threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


@cache
def _prepare_process(threads: int) -> None:
    """What ONNX Runtime has once per process.

    One arena for all segments, so that each finds in the cache what the last one used, and one pool of `threads`:
    0 for none, since once it is there every session of the process must use it, those of the user too.
    """
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, None)
    if threads:
        ort.set_global_thread_pool_sizes(threads, 1)
