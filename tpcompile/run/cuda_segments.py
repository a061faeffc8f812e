"""Segments on a GPU through ONNX Runtime's CUDA provider, on the same stream as NCCL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort  # type: ignore[import-untyped]

from tpcompile.errors import refuse
from tpcompile.run.cpu import base_options, made_by, make_session
from tpcompile.run.cuda import DeviceArray, Gpu
from tpcompile.run.gpu_executor import GpuExecutor
from tpcompile.run.mpi import World

PROVIDER = "CUDAExecutionProvider"
CPU_INSTEAD = "Use --backend cpu, where bfloat16 is computed in float32, or check that the source loads with CUDA"


@cache
def why_no_provider() -> str | None:
    """Why ONNX Runtime here computes on no GPU, None where it says it can. Uses no GPU."""
    if PROVIDER in ort.get_available_providers():
        return None
    return f"onnxruntime {ort.__version__} comes without {PROVIDER}: pip install onnxruntime-gpu instead"


def why_not_started(gpu: Gpu) -> str | None:
    """Why the provider does not start on `gpu`, None where it does: libraries it needs may be missing."""
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "trial", [value], [
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])])  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    try:
        session = ort.InferenceSession(model.SerializeToString(), _options(Path(), 1, False), providers=_providers(gpu))
    except Exception as error:
        return f"{PROVIDER} of onnxruntime {ort.__version__} does not start ({str(error).splitlines()[0]})"
    if PROVIDER not in session.get_providers():  # ONNX Runtime says so on stderr, and takes the CPU
        return f"{PROVIDER} of onnxruntime {ort.__version__} does not start: it says above which library it misses"
    return None


def _providers(gpu: Gpu) -> list[Any]:
    """The provider on our stream; what it has no kernel for runs on the CPU.

    Each session has memory of its own, so none takes more than it asks for.
    """
    settings = {
        "device_id": str(gpu.device.device_id),
        "user_compute_stream": str(gpu.stream_handle),
        "arena_extend_strategy": "kSameAsRequested",
    }
    return [(PROVIDER, settings), "CPUExecutionProvider"]


def _options(folder: Path, threads: int, prepack: bool) -> Any:
    options = base_options(folder, prepack=prepack)
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


class CudaExecutor(GpuExecutor):
    """Runs segments in ONNX Runtime sessions; `folder` holds the weights of what it loads."""

    def __init__(self, folder: Path, world: World, gpu: Gpu, *, prepack: bool) -> None:
        super().__init__(gpu, world)
        self.folder = folder
        self._options = _options(folder, world.threads, prepack)
        self._run_options = ort.RunOptions()
        # Without it every run would end with a wait for the GPU.
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def load(self, part: onnx.ModelProto, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> CudaSegment:
        session = make_session(part, self.folder, self._options, _providers(self.gpu), CPU_INSTEAD)
        if PROVIDER not in session.get_providers():
            raise refuse("TP606", str(self.folder), f"{PROVIDER} does not start for one of its segments",
                         "Use --backend cpu, or see what ONNX Runtime says above")  # fmt: skip
        return CudaSegment(session, inputs, outputs, self.gpu, self._run_options)


class CudaSegment:
    """A session with its binding."""

    def __init__(
        self, session: Any, inputs: tuple[str, ...], outputs: tuple[str, ...], gpu: Gpu, run_options: Any
    ) -> None:
        self.session, self.inputs, self.outputs = session, inputs, outputs
        self.device_id, self.run_options = gpu.device.device_id, run_options
        self.binding = session.io_binding()
        self.made = made_by(session)

    def run(self, values: Mapping[str, DeviceArray]) -> Iterable[DeviceArray]:
        """Bind each input where it lies, let ONNX Runtime place the outputs anew, and ask for the computation.

        Memory that it frees while the GPU still works in it is safe: only later work of the same stream gets it.
        """
        binding = self.binding
        for name in self.inputs:
            value = values[name]
            binding.bind_input(name, "cuda", self.device_id, value.element, value.shape, value.pointer)
        for name in self.outputs:
            binding.bind_output(name, "cuda", self.device_id)
        self.session.run_with_iobinding(binding, self.run_options)
        made = binding.get_outputs()
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        return [DeviceArray(value.data_ptr(), tuple(value.shape()), value.element_type(), value) for value in made]
