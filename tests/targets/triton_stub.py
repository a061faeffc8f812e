"""What stands in for Triton in tests: its protobuf of config.pbtxt, and the module that its Python backend provides."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format


def read_config(path: Path) -> Any:
    """A config.pbtxt as Triton reads it: an unknown field or a wrong type is an error."""
    return text_format.Parse(path.read_text(encoding="utf-8"), _model_config().ModelConfig())


def _model_config() -> ModuleType:
    """`tritonclient.grpc.model_config_pb2`, without the package around it, which needs grpcio."""
    name = "tests_model_config_pb2"
    if name not in sys.modules:
        try:
            files = importlib.metadata.files("tritonclient") or []
        except importlib.metadata.PackageNotFoundError:
            pytest.skip("Triton's protobuf comes with the package tritonclient")
        place = next(file for file in files if file.name == "model_config_pb2.py").locate()
        spec = importlib.util.spec_from_file_location(name, str(place))
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        assert array.dtype.isbuiltin == 1, f"{array.dtype} is not numpy's own"
        self.called, self.array = name, array

    def name(self) -> str:
        return self.called

    def as_numpy(self) -> np.ndarray:
        return self.array


class InferenceResponse:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: Any = None) -> None:
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


class TritonError(Exception):
    """Triton's own is an object with a message too."""


class Request:
    """A request as the Python backend hands it over."""

    def __init__(
        self,
        feeds: dict[str, np.ndarray],
        outputs: Sequence[str],
        sequence: int | str = 0,
        flags: int = 0,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        self.feeds, self.outputs, self.sequence, self.bits = feeds, outputs, sequence, flags
        self.said = json.dumps(parameters) if parameters is not None else ""

    def requested_output_names(self) -> Sequence[str]:
        return self.outputs

    def correlation_id(self) -> int | str:
        return self.sequence

    def flags(self) -> int:
        return self.bits

    def parameters(self) -> str:
        return self.said


START, END = 1, 2


def module() -> ModuleType:
    """`triton_python_backend_utils`, as far as it is used."""
    made = ModuleType("triton_python_backend_utils")
    made.Tensor, made.InferenceResponse, made.TritonError = Tensor, InferenceResponse, TritonError  # type: ignore[attr-defined]
    made.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = START  # type: ignore[attr-defined]
    made.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = END  # type: ignore[attr-defined]
    made.get_input_tensor_by_name = (  # type: ignore[attr-defined]
        lambda request, name: Tensor(name, request.feeds[name]) if name in request.feeds else None
    )
    return made
