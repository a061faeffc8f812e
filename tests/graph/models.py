"""Small models for the tests of reading, written as ONNX text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from tpcompile.errors import Refused
from tpcompile.graph.read import SourceModel, checked

HEADER = '<ir_version: 10, opset_import: ["" : 20]>\n'

PLAIN = """g (float[B, 4] x) => (float[B, 3] y)
<float[4, 3] w = {1, -2, 3, 4, -5, 6, 7, 8, -9, 10, 11, -12}>
{ [mm] y = MatMul(x, w) }"""

EVERYTHING = """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
g (float[B, 4] x, bool c) => (float[B, 3] y, float[B, 3] z)
<float[4, 3] w = {1, -2, 3, 4, -5, 6, 7, 8, -9, 10, 11, -12}, int8[2] unused = {1, 2}>
{
 [n0] i = Identity(x)
 [n1] m = MatMul(i, w)
 k = Constant <value = float[3] {1, -2, 3}> ()
 t = Constant <value_float = 1.5> ()
 [n2] a = Add(m, k)
 [n3] y = local.scale <f = 2.0> (a, t)
 [if] z = If (c) <
   then_branch = g1 () => (float[B, 3] p) { cc = Constant <value = float[3] {1, 1, -1}> () p = Add(a, cc) },
   else_branch = g2 () => (float[B, 3] p2) <float[3] ww = {1, -2, 3}> { [r] r = Mul(a, ww) p2 = Identity(r) }
 >
}
<domain: "local", opset_import: ["" : 18]>
scale <f> (u, v) => (o) { h = Mul(u, v) e = Constant <value_float: float = @f> () o = Mul(h, e) }
"""
"""A function, nested graphs, all kinds of stored tensors: what fuzzing starts from."""


def model(text: str, header: str = HEADER) -> onnx.ModelProto:
    """The model of an ONNX text; unsound ones too."""
    return onnx.parser.parse_model(header + text)


def source(text: str, header: str = HEADER) -> SourceModel:
    """The same, read."""
    return checked(model(text, header), folder=None, file="m.onnx", own_bytes=None)


def save_outside(folder: Path, location: str = "w.bin", offset: int | None = None, length: int | None = None) -> Path:
    """Write `PLAIN` to folder/m.onnx, with its weight said to lie elsewhere (no data is written); the file's path."""
    proto = model(PLAIN)
    weight = proto.graph.initializer[0]
    weight.ClearField("float_data")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            weight.external_data.add(key=key, value=str(value))
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


WEIGHT = np.array([[1, -2, 3], [4, -5, 6], [7, 8, -9], [10, 11, -12]], dtype=np.float32)


def text_of(refused: Refused) -> str:
    """The whole text of a refusal."""
    return str(refused)
