"""Numbers of 8 bits are computed exactly in operators that TensorRT knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.sample import Sample
from tests.rules.samples import quantized
from tests.targets.lowering.lowered import build_faults, error_of
from tpcompile.targets.lowering import lower
from tpcompile.targets.lowering.registry import LOWERINGS

NATIVE = (
    "DequantizeLinear int8[10, 12] by float[10]",
    "DequantizeLinear float8e4m3fn[12, 10]",
    "DequantizeLinear scales that are quantised themselves",
    "QuantizeLinear to float8",
)
"""What TensorRT takes as it is, or not at all: nothing is changed."""
ONE_STEP = 0.007
"""Of 150 to 161, the largest numbers: ONNX Runtime's softmax of numbers of 8 bits rounds on its way."""
SCALES = {"s": (0.01, 0.1), "t": (0.01, 0.1)}
SAMPLES = [
    *(
        sample
        for sample in quantized.SAMPLES
        if sample.key in LOWERINGS and not str(sample).startswith(NATIVE) and "int16" not in sample.note
    ),
    *(
        Sample(
            "MatMulInteger",
            f"""(uint8[b, s, 700] x, uint8 z) => (int32[] y) <{kind}[700, 6] w, {kind}[6] o>
            {{ y = MatMulInteger(x, w, z, o) }}""",
            note=f"more than float32 sums up, {kind}",
        )
        for kind in ("int8", "uint8")
    ),
    Sample(
        "QLinearConv",
        """(uint8[b, 4, 7, 6] x) => (uint8[] y)
        <float p, uint8 z, uint8[6, 2, 3, 3] w, float[6] q, uint8[6] o, float r, uint8 n>
        { y = QLinearConv<group = 2>(x, p, z, w, q, o, r, n) }""",
        values={"o": (7, 8), "p": (0.01, 0.02), "q": (0.01, 0.02), "r": (0.3, 0.4)},
        note="a zero point for each channel",
    ),
    Sample(
        "MatMulInteger",
        """(uint8[b, 5, 700] x, int8[b, 700, s] w, uint8 z, int8 o) => (int32[] y)
        { y = MatMulInteger(x, w, z, o) }""",
        note="both computed",
        values={"x": (250, 256), "w": (-64, -56), "z": (0, 3), "o": (120, 128)},
    ),
    Sample(
        "MatMulInteger",
        """(uint8[b, 5, t] x, int8[b, t, s] w, uint8 z, int8 o) => (int32[] y) { y = MatMulInteger(x, w, z, o) }""",
        note="a length that varies",
        values={"x": (250, 256), "w": (-64, -56), "z": (0, 3), "o": (120, 128)},
        sizes={"b": 2, "s": 3, "t": 2000},
    ),
    Sample(
        "ConvInteger",
        """(uint8[b, 40, 9, 7] x, uint8 z) => (int32[] y) <uint8[6, 40, 3, 3] w>
        { y = ConvInteger<pads = [1, 1, 1, 1]>(x, w, z) }""",
        note="more channels than float32 sums up",
    ),
    Sample(
        "DynamicQuantizeLinear",
        """(float[b, s, 40] x) => (float[] y) <int8[40, 30] w, float[30] t> {
            q, a, z = DynamicQuantizeLinear(x)
            p = MatMulInteger(q, w, z)
            f = Cast<to = 1>(p)
            c = Mul(a, t)
            y = Mul(f, c)
        }""",
        note="into a product",
        opset=13,
        values=SCALES,
    ),
    Sample(
        "QuantizeLinear",
        """(float[b, s, 12] x) => (float[] y) <float s, uint8 z, int64[4] shape = {0, 0, 6, 2}> {
            q = QuantizeLinear(x, s, z)
            r = Reshape(q, shape)
            h = Transpose<perm = [0, 2, 1, 3]>(r)
            c = Concat<axis = 1>(h, h)
            y = DequantizeLinear(c, s, z)
        }""",
        note="moved in between",
        opset=13,
        values=SCALES,
    ),
    Sample(
        "QuantizeLinear",
        """(float[b, 3, 12] x, int64[b] i) => (uint8[] y, int8[] d) <float s, uint8 z, uint8[9, 12] w, int8[5, 9] v> {
            r = ReduceMean<axes = [1], keepdims = 0>(x)
            g = Gather(w, i)
            m = QuantizeLinear(r, s, z)
            y = Concat<axis = 1>(g, m)
            d = Gather(v, i)
        }""",
        note="looked up in tables",
        opset=13,
        values=SCALES | {"i": (0, 5)},
    ),
    Sample(
        "QuantizeLinear",
        """(float[b, 4] x, int64[b] i) => (bool[] y, float[] d) <float s, uint8 z, uint8 p, uint8[6, 2, 2] w,
        int64[2] shape = {6, 4}> {
            q = QuantizeLinear(x, s, z)
            y = Equal(q, p)
            r = Reshape(w, shape)
            g = Gather(r, i)
            c = Max(g, q)
            d = DequantizeLinear(c, s, z)
        }""",
        note="compared with a number, and with a table in another shape",
        opset=13,
        values=SCALES | {"i": (0, 6), "p": (3, 9), "z": (3, 9), "s": (0.5, 0.6)},
    ),
    Sample(
        "QuantizeLinear",
        """(float[b, s] x) => (float[] y) <float s, uint8 z> {
            q = Cast<to = 2>(x)
            r = QuantizeLinear(x, s, z)
            c = Concat<axis = 0>(q, r)
            y = DequantizeLinear(c, s, z)
        }""",
        note="beside a cast",
        opset=13,
        values=SCALES | {"x": (0, 200)},
    ),
    *(
        Sample(
            "DequantizeLinear",
            f"""(float[b, {rows}] x) => (float[] y) <{kind}[{rows}, 20] w, float[{scales}] s, {kind}[{scales}] z> {{
                v = DequantizeLinear<axis = {axis}{more}>(w, s, z)
                y = MatMul(x, v)
            }}""",
            note=f"a weight of {kind}, axis {axis}{more}",
            opset=21,
            values=SCALES,
        )
        for kind, rows, scales, axis, more in (
            ("uint8", 30, "20", 1, ""),
            ("int8", 30, "30", 0, ""),
            ("uint4", 30, "20", 1, ""),
            ("uint4", 64, "4, 20", 0, ", block_size = 16"),
            ("int4", 64, "64, 2", 1, ", block_size = 10"),
            ("int4", 62, "4, 20", 0, ", block_size = 16"),
        )
    ),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_numbers_stay(sample: Sample, tmp_path: Path) -> None:
    assert error_of(sample, tmp_path) < (ONE_STEP if "Softmax" in sample.op else 1e-6)


@pytest.mark.parametrize("sample", [s for s in quantized.SAMPLES if str(s).startswith(NATIVE)], ids=str)
def test_what_tensorrt_takes_itself_stays(sample: Sample, tmp_path: Path) -> None:
    found = lower(sample.model(), tmp_path, "lowered.bin")
    assert (dict(found.changes), dict(found.left)) == ({}, {})


def test_numbers_that_something_else_computes_with_stay_as_they_are(tmp_path: Path) -> None:
    sample = Sample(
        "BitwiseNot",
        """(float[b, s] x) => (uint8[] y) <float s, uint8 z> { q = QuantizeLinear(x, s, z) y = BitwiseNot(q) }""",
    )
    found = lower(sample.model(), tmp_path, "lowered.bin")
    assert list(found.left.values()) == ["something else computes with such numbers"]


def test_if_one_operator_is_left_no_number_is_held_otherwise(tmp_path: Path) -> None:
    sample = Sample(
        "com.microsoft.QGemm",
        """(float[b, 6] x) => (uint8[] y) <float s, uint8 z, uint8[6, 10] w, float q, uint8 o> {
            c = QuantizeLinear(x, s, z)
            y = com.microsoft.QGemm<alpha = 0.5>(c, s, z, w, q, o, "", q, o)
        }""",
    )
    found = lower(sample.model(), tmp_path, "lowered.bin")
    assert [node.op_type for node in found.model.graph.node] == ["QuantizeLinear", "QGemm"]
    assert set(found.left.values()) == {"it is scaled besides", "something else computes with such numbers"}


def test_tensorrt_builds_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="engines need tensorrt-rtx: pip install 'tpcompile[rtx]'")
    assert build_faults(SAMPLES, tmp_path) == {}
