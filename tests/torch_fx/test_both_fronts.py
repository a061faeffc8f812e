"""One model, two ways in: its PyTorch graph and the ONNX file that torch's exporter makes of it are planned alike."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'tpcompile[torch]'")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'tpcompile[models]'")
pytest.importorskip("onnxscript", reason="torch's ONNX exporter needs onnxscript")

from tests.torch_fx import models  # noqa: E402
from tests.torch_fx.side_by_side import analysed  # noqa: E402
from tpcompile import api  # noqa: E402
from tpcompile.passes.compilation import Compilation  # noqa: E402
from tpcompile.pipeline import replanned  # noqa: E402
from tpcompile.plan_summary import summarize  # noqa: E402
from tpcompile.weights.source import MemoryBytes  # noqa: E402

FAMILIES = ["llama-tied", "qwen3", "gpt2", "gpt-neox", "falcon", "phi3", "bert", "vit"]
LEAST = 256
"""Elements from which a tensor counts: smaller ones are constants of the one graph or the other."""

Lies = tuple[str, tuple[tuple[int, int], ...]]
"""How a weight is cut, and per axis its size and that of a rank's part."""


@functools.cache
def fronts(name: str) -> tuple[Compilation, Compilation]:
    """The model planned for 2 ranks as PyTorch graph and as ONNX graph."""
    return analysed(name, False), api.plan(models.exported(name), 2)


def by_content(name: str) -> dict[bytes, tuple[str, bool]]:
    """Names of the model's tensors by their bits, as they are and turned: the exporter turns and renames them."""
    found: dict[bytes, tuple[str, bool]] = {}
    program = models.exported(name)
    for key, tensor in (program.constants | program.state_dict).items():
        if isinstance(tensor, torch.Tensor) and tensor.numel() >= LEAST:
            if tensor.dim() == 2:
                found[tensor.detach().T.contiguous().numpy().tobytes()] = key, True
            found[tensor.detach().contiguous().numpy().tobytes()] = key, False
    return found


def lies(work: Compilation, name: str) -> dict[str, Lies]:
    """How each large weight of the model lies, by PyTorch's name of it and along PyTorch's axes."""
    names, found = by_content(name), {}
    for row in summarize(work).weights:
        weight = work.program.values[row.name].weight
        if weight is None or row.nbytes < 4 * LEAST:
            continue
        assert isinstance(weight.source, MemoryBytes)
        key, turned = names[bytes(weight.source.data)]
        axes = tuple(zip(row.shape, row.local_shape, strict=True))
        found[key] = row.how, axes[::-1] if turned else axes
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_both_fronts_cut_the_same_weights_and_send_the_same(name: str) -> None:
    for tp in (2, 4):
        ours, onnx = (work if tp == 2 else replanned(work, tp) for work in fronts(name))
        assert lies(ours, name) == lies(onnx, name)
        assert any(how != "whole" for how, _ in lies(ours, name).values())
        sent = [Counter(row.op for row in summarize(work).collectives) for work in (ours, onnx)]
        assert sent[0] == sent[1] and sent[0]["all_reduce"] > 0
