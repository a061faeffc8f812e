"""What Triton's Python backend runs: a bundle's ranks behind one model, with a sequence's caches kept on them.

A request with a correlation id is the next piece of that sequence: its tokens are fed to the model, and its answer is
that of this step. `sequence_start` begins one, `sequence_end` frees it, and so does a long silence. A request without
one stands for itself; with the parameter `steps` the likeliest tokens are fed back that often within the ranks.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import triton_python_backend_utils as triton  # type: ignore[import-not-found]  # there only within Triton

from tpcompile.errors import RankFailed, TpcompileError, refuse
from tpcompile.run.session import InferenceSession
from tpcompile.run.tensors import Array

ALONE = -1
"""The number of a sequence that begins and ends with one request."""


class TritonPythonModel:
    """The class that Triton looks for in model.py."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the ranks of the bundle that lies in the version's folder."""
        if not Path(sys.executable or "").name.startswith("python"):
            sys.executable = shutil.which("python3") or sys.executable  # Triton's own program holds the interpreter
        self.folder = Path(args["model_repository"], args["model_version"], "bundle")
        said = json.loads(args["model_config"]).get("parameters", {}).get("sequence_idle_seconds", {})
        self.idle_s = float(said.get("string_value", "inf"))
        self.numbers: dict[int | str, int] = {}
        self.used: dict[int | str, float] = {}
        self.session: InferenceSession | None = InferenceSession(self.folder)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """An answer for each request, in order: what one of them does wrong is told to it alone."""
        return [self._answer(request) for request in requests]

    def finalize(self) -> None:
        """End the ranks."""
        if self.session is not None:
            self.session.close()

    def _answer(self, request: Any) -> Any:
        try:
            if self.session is None:
                self.session = InferenceSession(self.folder)  # a rank failed: all of them are new
            found = self._serve(self.session, request)
            wanted = list(request.requested_output_names())
            return triton.InferenceResponse(
                output_tensors=[triton.Tensor(name, _plain(found[name])) for name in wanted if name in found]
            )
        except TpcompileError as error:
            if isinstance(error, RankFailed):
                self._give_up_all()
            return triton.InferenceResponse(error=triton.TritonError(str(error)))

    def _serve(self, session: InferenceSession, request: Any) -> dict[str, Array]:
        feeds = self._feeds(session, request)
        steps = json.loads(request.parameters() or "{}").get("steps")
        key, flags = request.correlation_id(), request.flags()
        names = [name for name in request.requested_output_names() if name in session.manifest.outputs]
        if steps is not None:
            if key or not str(steps).isdigit():
                fact = "a sequence goes on by the tokens that its requests bring" if key else "is no number of steps"
                raise refuse("TP746", f"parameter steps={steps}", fact, "Give a whole number, without a sequence's id")
            return session.decode(feeds, int(steps))
        if not session.manifest.state:
            return dict(zip(names, session.run(names, feeds), strict=True))
        if not key:
            found = session.extend(ALONE, feeds, names)
            session.forget(ALONE)
            return found
        return self._next(session, key, flags, names, feeds)

    def _next(
        self, session: InferenceSession, key: int | str, flags: int, names: list[str], feeds: dict[str, Array]
    ) -> dict[str, Array]:
        """One piece of a sequence."""
        self._forget_silent(session)
        if flags & triton.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self._forget(session, key)
            number = next(number for number in range(len(self.numbers) + 1) if number not in self.numbers.values())
        elif key in self.numbers:
            number = self.numbers[key]
        else:
            fact = f"is not known: it never began, ended, or was silent for more than {self.idle_s:g} s"
            raise refuse("TP747", f"sequence {key}", fact, "Begin it with sequence_start, and all of its tokens")
        found = session.extend(number, feeds, names)
        self.numbers[key], self.used[key] = number, time.monotonic()
        if flags & triton.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
            self._forget(session, key)
        return found

    def _forget(self, session: InferenceSession, key: int | str) -> None:
        if key in self.numbers:
            session.forget(self.numbers.pop(key))
            del self.used[key]

    def _forget_silent(self, session: InferenceSession) -> None:
        until = time.monotonic() - self.idle_s
        for key in [key for key, at in self.used.items() if at < until]:
            self._forget(session, key)

    def _give_up_all(self) -> None:
        """The ranks have ended, and their caches with them."""
        if self.session is not None:
            self.session.close()
        self.session = None
        self.numbers.clear()
        self.used.clear()

    def _feeds(self, session: InferenceSession, request: Any) -> dict[str, Array]:
        """The inputs that a request brings, in the model's own types."""
        feeds = {}
        for name, entry in session.manifest.inputs.items():
            tensor = triton.get_input_tensor_by_name(request, name)
            if tensor is not None:
                array = tensor.as_numpy()
                feeds[name] = array.astype(ml_dtypes.bfloat16) if entry.dtype == "bfloat16" else array
        return feeds


def _plain(array: Array) -> Array:
    """An output as numpy alone knows it."""
    return np.ascontiguousarray(array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array)
