"""A stand-in for ONNX Runtime's CUDA provider: the CPU computes, in the memory that a GPU would have."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort

from tests.run.gpu.fake_cuda import Device, Stream, fault, may_sleep, note

PROVIDER = "CUDAExecutionProvider"


class Binding:
    def __init__(self, real: Any) -> None:
        self.real = real

    def bind_input(self, name: str, device: str, index: int, element: int, shape: Any, pointer: int) -> None:
        assert (device, index) == ("cuda", getattr(Device.current, "device_id", None))
        self.real.bind_input(name, "cpu", 0, element, shape, pointer)

    def bind_output(self, name: str, device: str, index: int) -> None:
        assert (device, index) == ("cuda", getattr(Device.current, "device_id", None))
        self.real.bind_output(name, "cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Session:
    """Takes the place of `onnxruntime.InferenceSession`; sessions for the CPU stay what they are."""

    def __init__(self, model: bytes, options: Any = None, providers: Any = None) -> None:
        names = [found if isinstance(found, str) else found[0] for found in providers]
        self.given = dict(providers[0][1]) if PROVIDER in names else {}
        self.names = names
        self.real = REAL(model, options, providers=["CPUExecutionProvider"])

    def get_providers(self) -> list[str]:
        starts = fault("provider_starts", True)
        return self.names if starts else ["CPUExecutionProvider"]

    def io_binding(self) -> Any:
        return Binding(self.real.io_binding()) if self.given else self.real.io_binding()

    def run_with_iobinding(self, binding: Any, run_options: Any = None) -> None:
        if not self.given:
            self.real.run_with_iobinding(binding, run_options)
            return
        assert Device.current is not None and Device.stream is not None
        assert self.given == {
            "device_id": str(Device.current.device_id),
            "user_compute_stream": str(Device.stream.handle),
            "arena_extend_strategy": "kSameAsRequested",
        }
        waits = run_options.get_run_config_entry("disable_synchronize_execution_providers")
        assert waits == "1", "each segment would wait for the GPU"
        note("segment")
        Stream.seen.add("segment")
        may_sleep("segment")
        self.real.run_with_iobinding(binding.real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


REAL: Any = ort.InferenceSession


def install() -> None:
    ort.get_available_providers = lambda: [PROVIDER, "CPUExecutionProvider"]
    ort.InferenceSession = Session
