"""Ranks of our own: a session in plain Python starts them under mpirun and talks to rank 0."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpcompile.bundle.manifest import Manifest
from tpcompile.errors import Fault, RankFailed, Refused, refuse
from tpcompile.run import wire
from tpcompile.run.mpirun import Ranks, run_folder
from tpcompile.run.tensors import Array

PATIENCE_S = 5.0


class BackgroundRanks:
    """As many ranks as the bundle is for, until `close`, the end of this object, or the end of this process."""

    def __init__(
        self, bundle: Path, *, backend: str, timeout_s: float, load_timeout_s: float, prepack: bool, cuda_graphs: bool
    ) -> None:
        self.backend = ""
        self.manifest = Manifest.read(bundle)
        folder = run_folder()
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(f"{folder}/rank0")
            door.listen(1)
            command = [sys.executable, "-m", "tpcompile.run.serve", f"{folder}/rank0", str(bundle.resolve()),
                       "--backend", backend, "--timeout", str(timeout_s),
                       "--load-timeout", str(load_timeout_s)]  # fmt: skip
            command += ["--prepack"] * prepack + ["--cuda-graphs"] * cuda_graphs
            self._ranks = Ranks(command, self.manifest.world_size, folder=folder, aloud=False)
            self._lines: list[socket.socket] = []
            self._end = weakref.finalize(self, _end, self._ranks, self._lines)
            self._accept(door, load_timeout_s)
        self._answer()

    def _accept(self, door: socket.socket, limit_s: float) -> None:
        """Wait for rank 0 to come, as long as mpirun lives."""
        door.settimeout(0.1)
        until = time.monotonic() + (limit_s or float("inf"))
        while not self._ranks.ended() and time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                line, _ = door.accept()
                line.setblocking(True)
                self._lines.append(line)
                return
        raise self._failed()

    def run(self, output_names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Whole outputs by name for whole inputs."""
        return self._call({"call": "run", "outputs": list(output_names)}, feeds)

    def decode(self, feeds: Mapping[str, Array], steps: int) -> dict[str, Array]:
        """Greedy decoding; see `InferenceSession.decode`."""
        return self._call({"call": "decode", "steps": steps}, feeds)

    def extend(self, sequence: int, output_names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The next tokens of a sequence; see `InferenceSession.extend`."""
        return self._call({"call": "extend", "sequence": sequence, "outputs": list(output_names)}, feeds)

    def forget(self, sequence: int) -> None:
        """End a sequence; see `InferenceSession.forget`."""
        self._call({"call": "forget", "sequence": sequence}, {})

    def _call(self, head: Mapping[str, Any], feeds: Mapping[str, Array]) -> dict[str, Array]:
        if not self._end.alive:
            raise refuse("TP613", "session", "its ranks have ended", "Make a new InferenceSession")
        try:
            self._lines[0].sendall(wire.pack(head, feeds))
            return self._answer()
        except ConnectionError:
            raise self._failed() from None
        except KeyboardInterrupt:
            self.close()  # an answer may be half read: what came next would be taken for something else
            raise

    def _answer(self) -> dict[str, Array]:
        message = wire.receive(self._lines[0])
        if message is None:
            raise self._failed()
        head, arrays = wire.unpack(message)
        if "faults" in head:
            raise Refused(*(Fault(*fault) for fault in head["faults"]))
        self.backend = head.get("backend", self.backend)
        return arrays

    def _failed(self) -> RankFailed:
        """End what is left and say what the ranks said last."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._ranks.mpirun.wait(PATIENCE_S)  # mpirun collects the last words of its ranks
        self.close()
        said = " | ".join(self._ranks.messages.last_words()) or f"mpirun ended with {self._ranks.mpirun.returncode}"
        return RankFailed(Fault("TP612", "session", f"a rank failed: {said}", "Make a new session when it is mended"))

    def close(self) -> None:
        """End the ranks."""
        self._end()


def _end(ranks: Ranks, lines: list[socket.socket]) -> None:
    """Hang up, give the ranks a moment to leave by themselves, then end them."""
    for line in lines:
        line.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        ranks.mpirun.wait(PATIENCE_S)
    ranks.end()
