"""Ranks of our own: a session in plain Python starts them under mpirun and talks to rank 0."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpcompile.bundle.manifest import Manifest
from tpcompile.errors import Fault, RankFailed, Refused, refuse
from tpcompile.run import wire
from tpcompile.run.launch import Messages, end_ranks, start_ranks
from tpcompile.run.tensors import Array

PATIENCE_S = 5.0


class BackgroundRanks:
    """As many ranks as the bundle is for, until `close`, the end of this object, or the end of this process."""

    def __init__(self, bundle: Path, *, timeout_s: float, load_timeout_s: float, prepack: bool) -> None:
        self.manifest = Manifest.read(bundle)
        folder = tempfile.mkdtemp(prefix="tpcompile-")
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(f"{folder}/rank0")
            door.listen(1)
            command = [sys.executable, "-m", "tpcompile.run.serve", f"{folder}/rank0", str(bundle.resolve()),
                       "--timeout", str(timeout_s), "--load-timeout", str(load_timeout_s)]  # fmt: skip
            self._started = start_ranks(command + (["--prepack"] if prepack else []), self.manifest.world_size)
            assert self._started.stderr is not None
            self._messages = Messages(self._started.stderr, aloud=False)
            self._rank0 = socket.socket(socket.AF_UNIX)
            self._end = weakref.finalize(self, _end, self._started, folder)
            self._rank0 = self._accept(door, load_timeout_s)
        self._answer()

    def _accept(self, door: socket.socket, limit_s: float) -> socket.socket:
        """Wait for rank 0 to come, as long as mpirun lives."""
        door.settimeout(0.1)
        until = time.monotonic() + (limit_s or float("inf"))
        while self._started.poll() is None and time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                stream, _ = door.accept()
                stream.setblocking(True)
                return stream
        raise self._failed()

    def run(self, output_names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Whole outputs by name for whole inputs."""
        return self._call({"call": "run", "outputs": list(output_names)}, feeds)

    def decode(self, feeds: Mapping[str, Array], steps: int) -> dict[str, Array]:
        """Greedy decoding; see `InferenceSession.decode`."""
        return self._call({"call": "decode", "steps": steps}, feeds)

    def _call(self, head: Mapping[str, Any], feeds: Mapping[str, Array]) -> dict[str, Array]:
        if not self._end.alive:
            raise refuse("TP613", "session", "its ranks have ended", "Make a new InferenceSession")
        try:
            self._rank0.sendall(wire.pack(head, feeds))
            return self._answer()
        except ConnectionError:
            raise self._failed() from None
        except KeyboardInterrupt:
            self.close()  # an answer may be half read: what came next would be taken for something else
            raise

    def _answer(self) -> dict[str, Array]:
        message = wire.receive(self._rank0)
        if message is None:
            raise self._failed()
        head, arrays = wire.unpack(message)
        if "faults" in head:
            raise Refused(*(Fault(*fault) for fault in head["faults"]))
        return arrays

    def _failed(self) -> RankFailed:
        """End what is left and say what the ranks said last."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._started.wait(PATIENCE_S)  # mpirun collects the last words of its ranks
        self.close()
        self._messages.join(PATIENCE_S)
        said = " | ".join(self._messages.last_words()) or f"mpirun ended with {self._started.returncode}"
        return RankFailed(Fault("TP612", "session", f"a rank failed: {said}", "Make a new session when it is mended"))

    def close(self) -> None:
        """End the ranks."""
        self._rank0.close()
        self._end()


def _end(started: subprocess.Popen[bytes], folder: str) -> None:
    """Give the ranks a moment to leave by themselves (their caller is gone), then end them."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.wait(PATIENCE_S)
    end_ranks(started)
    shutil.rmtree(folder, ignore_errors=True)
