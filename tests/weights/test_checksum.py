"""The checksum of a tensor's ends, and that a rank refuses weights of another compile."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests import zoo
from tpcompile.bundle.manifest import Manifest
from tpcompile.cli import main
from tpcompile.weights.checksum import PAGE, edge_checksum


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 3 * PAGE + 7])
def test_it_covers_both_ends(tmp_path: Path, length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, 2 * PAGE + length, np.uint8)
    path = tmp_path / "weights.bin"
    path.write_bytes(data.tobytes())
    mine = data[PAGE : PAGE + length].tobytes()
    assert edge_checksum(path, PAGE, length) == f"{zlib.crc32(mine[-PAGE:], zlib.crc32(mine[:PAGE])):08x}"
    for at in (0, length - 1):
        changed = data.copy()
        changed[PAGE + at] ^= 1
        path.write_bytes(changed.tobytes())
        assert edge_checksum(path, PAGE, length) != f"{zlib.crc32(mine[-PAGE:], zlib.crc32(mine[:PAGE])):08x}"


def test_a_rank_refuses_weights_of_another_compile(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, bundle = zoo.save("llama__dynamo__kv", tmp_path / "model.onnx"), tmp_path / "bundle"
    assert main([str(source), "--tp", "2", "-o", str(bundle)]) == 0
    files = [data.file for data in Manifest.read(bundle).ranks[1].data]
    swapped = (bundle / files[0]).read_bytes()
    (bundle / files[0]).write_bytes(swapped[PAGE:] + swapped[:PAGE])
    np.savez(tmp_path / "x.npz", **zoo.feeds("llama__dynamo__kv"))
    assert main(["run", str(bundle), "--inputs", str(tmp_path / "x.npz"), "--outputs", str(tmp_path / "y.npz")]) == 2
    said = capfd.readouterr().err
    assert "TP608" in said and "its bytes are not those that were written with the model" in said
    assert "rank 1" in said and not (tmp_path / "y.npz").exists()
    assert json.loads((bundle / "bundle.json").read_text())["format"] == 1
