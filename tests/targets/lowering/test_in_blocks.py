"""Weights of few bits stay so in an engine; numbers are those of the whole weights."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.rules.sample import Sample
from tests.rules.samples import in_blocks
from tests.targets.lowering.lowered import build_faults, error_of
from tpcompile.targets.lowering import lower

WHOLE = "its weight is packed for one kind of device"
STAYS = {
    "packed": WHOLE,
    "blocks first": "the numbers of a byte belong to several rows",
}
HALF = [
    Sample(
        "com.microsoft.MatMulNBits",
        f"""(float16[b, t, 96] x) => (float16[] y) <uint8[10, 3, {bits * 4}] w, float16[10, 3] s, uint8[10, {zeros}] z>
        {{ y = com.microsoft.MatMulNBits<K = 96, N = 10, block_size = 32, bits = {bits}>(x, w, s, z) }}""",
        note=f"half precision, {bits} bits",
        values=in_blocks.NARROW,
        sizes={"b": 2, "t": 3},
    )
    for bits, zeros in ((4, 2), (8, 3))
]
REORDERED = Sample(
    "com.microsoft.MatMulNBits",
    """(float[b, t, 120] x) => (float[] y) <uint8[10, 4, 16] w, float[10, 4] s, int32[120] g>
    { y = com.microsoft.MatMulNBits<K = 120, N = 10, block_size = 32>(x, w, s, "", g) }""",
    note="blocks that are not full, in an order of their own",
    values=in_blocks.NARROW | {"g": (0, 4)},
    sizes={"b": 2, "t": 3},
)
SAMPLES = [*(sample for sample in in_blocks.SAMPLES if not sample.note.endswith(tuple(STAYS))), *HALF, REORDERED]


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if "int8" not in sample.note], ids=str)
def test_numbers_stay(sample: Sample, tmp_path: Path) -> None:
    assert error_of(sample, tmp_path) < (4e-3 if sample in HALF else 1e-5)


@pytest.mark.parametrize("note", STAYS)
def test_other_forms_stay_with_the_reason(note: str, tmp_path: Path) -> None:
    sample = next(sample for sample in in_blocks.SAMPLES if sample.note.endswith(note))
    found = lower(sample.model(), tmp_path, "lowered.bin")
    assert (dict(found.changes), list(found.left.values())) == ({}, [STAYS[note]])


def test_an_order_beside_zero_points_stays(tmp_path: Path) -> None:
    sample = in_blocks.in_blocks(192, 10, 32, zeros="uint8", more="order")
    found = lower(sample.model(), tmp_path, "lowered.bin")
    assert list(found.left.values()) == ["its rows are in another order, and there are zero points"]


def test_weights_keep_their_bits_and_unchanged_bytes_are_not_written_again(tmp_path: Path) -> None:
    product, lookup = (
        Sample(
            "com.microsoft.MatMulNBits",
            """(float[b, 512] x) => (float[] y) <uint8[96, 16, 16] w, float[96, 16] s>
            { y = com.microsoft.MatMulNBits<K = 512, N = 96, block_size = 32>(x, w, s) }""",
        ),
        Sample(
            "com.microsoft.GatherBlockQuantized",
            """(int64[b] i) => (float[] y) <uint8[96, 256] w, float[96, 16] s>
            { y = com.microsoft.GatherBlockQuantized<block_size = 32>(w, i, s) }""",
        ),
    )
    files = []
    for sample in (product, lookup):
        model = sample.model()
        onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=4096)
        made = lower(onnx.load(tmp_path / "m.onnx", load_external_data=False), tmp_path, "lowered.bin").model
        tensors = [tensor for tensor in made.graph.initializer if tensor.external_data]
        files.append([(onnx.TensorProto.DataType.Name(t.data_type), t.external_data[0].value) for t in tensors])
    assert ("INT4", "lowered.bin") in files[0]
    assert ("INT32", "m.bin") in files[1]
    assert (tmp_path / "lowered.bin").stat().st_size == 96 * 256


def test_tensorrt_builds_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="engines need tensorrt-rtx: pip install 'tpcompile[rtx]'")
    assert build_faults(SAMPLES, tmp_path) == {}


@pytest.mark.parametrize(("opset", "left"), [(12, ["weights are in blocks from opset 21 on"]), (13, []), (18, [])])
def test_before_opset_13_there_is_no_weight_in_blocks(opset: int, left: list[str], tmp_path: Path) -> None:
    model = SAMPLES[3].model()
    model.opset_import[0].version = opset
    assert list(lower(model, tmp_path, "lowered.bin").left.values()) == left
