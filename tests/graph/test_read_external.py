"""Weights outside the model file: found in its own folder, refused everywhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from tests.graph.models import PLAIN, WEIGHT, model, save_outside
from tpcompile.errors import Refused
from tpcompile.graph.from_onnx import to_program
from tpcompile.graph.read import read_model
from tpcompile.weights.source import FileBytes

INSIDE = "Data is read from the model's own folder only: move it there and save the model again"
LINKS = "Give --allow-links (allow_links=True) to follow it, once and only for reading, or put the real file there"
BELONGS = "Put the file there: it belongs to the model"
AGAIN = "Fetch the file again, or save the model and its data again, together"


def refusal(path: Path, allow_links: bool = False, require_data: bool = True) -> str:
    with pytest.raises(Refused) as caught:
        read_model(path, allow_links=allow_links, require_data=require_data)
    return str(caught.value).replace(str(path.parent), "{folder}")


def test_finds_the_data(tmp_path: Path) -> None:
    path = save_outside(tmp_path, offset=16, length=48)
    (tmp_path / "w.bin").write_bytes(b"\7" * 16 + WEIGHT.tobytes() + b"more")
    read = read_model(path)
    assert read.external == {"w": FileBytes(tmp_path / "w.bin", 16, 48)}
    assert read.nbytes == path.stat().st_size + 48
    weight = to_program(read).values["w"].weight
    assert weight is not None
    assert (weight.dtype, weight.shape, weight.source) == ("float32", (4, 3), read.external["w"])


def test_finds_data_in_a_folder_below_and_from_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(WEIGHT.tobytes())
    save_outside(tmp_path, "./sub/w.bin")
    monkeypatch.chdir(tmp_path)
    assert read_model(Path("m.onnx")).external == {"w": FileBytes(tmp_path / "sub" / "w.bin", 0, 48)}


def test_a_hard_link_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(WEIGHT.tobytes())
    os.link(tmp_path / "blob", tmp_path / "w.bin")
    assert read_model(save_outside(tmp_path)).external["w"].nbytes == 48


@pytest.mark.parametrize(
    "location", ["../w.bin", "/etc/passwd", "a/../../w.bin", "C:\\w.bin", "..\\w.bin", "\\\\host\\w"]
)
@pytest.mark.parametrize("allow_links", [False, True])
def test_outside_the_folder(location: str, allow_links: bool, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    expected = f"TP211 weight w: its data lies outside the model's folder, at {location!r}. {INSIDE}"
    assert refusal(save_outside(folder, location), allow_links) == expected
    assert refusal(save_outside(folder, location), allow_links, require_data=False) == expected


@pytest.mark.parametrize("location", ["", "."])
def test_no_location(location: str, tmp_path: Path) -> None:
    expected = f"TP211 weight w: names its data file {location!r}. {INSIDE}"
    assert refusal(save_outside(tmp_path, location)) == expected


def test_a_location_with_a_null(tmp_path: Path) -> None:
    expected = f"TP211 weight w: names its data file {'w' + chr(0)!r}. {INSIDE}"
    assert refusal(save_outside(tmp_path, "w\0")) == expected


def link_to_file(folder: Path, elsewhere: Path) -> tuple[str, str]:
    (folder / "w.bin").symlink_to(elsewhere / "blob")
    return "w.bin", "w.bin"


def link_to_folder(folder: Path, elsewhere: Path) -> tuple[str, str]:
    (elsewhere / "w.bin").write_bytes(WEIGHT.tobytes())
    (folder / "sub").symlink_to(elsewhere)
    return "sub/w.bin", "sub"


def link_within(folder: Path, elsewhere: Path) -> tuple[str, str]:
    (folder / "real.bin").write_bytes(WEIGHT.tobytes())
    (folder / "w.bin").symlink_to("real.bin")
    return "w.bin", "w.bin"


@pytest.mark.parametrize("make", [link_to_file, link_to_folder, link_within])
def test_links(make: Callable[[Path, Path], tuple[str, str]], tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "blob").write_bytes(WEIGHT.tobytes())
    location, link = make(folder, elsewhere)
    path = save_outside(folder, location)
    assert refusal(path) == f"TP212 weight w: its data is behind a link, {{folder}}/{link}. {LINKS}"
    found = read_model(path, allow_links=True).external["w"]
    assert isinstance(found, FileBytes)
    assert found.path == (folder / location).resolve()
    assert not found.path.is_symlink()


def test_links_in_a_circle_and_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "w.bin").symlink_to("w.bin")
    expected = f"TP213 weight w: its data file is missing: {{folder}}/w.bin. {BELONGS}"
    assert refusal(save_outside(tmp_path), allow_links=True) == expected
    (tmp_path / "w.bin").unlink()
    (tmp_path / "w.bin").symlink_to("nothing")
    assert refusal(save_outside(tmp_path), allow_links=True) == expected


def test_missing_data(tmp_path: Path) -> None:
    path = save_outside(tmp_path)
    assert refusal(path) == f"TP213 weight w: its data file is missing: {{folder}}/w.bin. {BELONGS}"
    read = read_model(path, require_data=False)
    assert read.external == {"w": FileBytes(tmp_path / "w.bin", 0, 48)}


def test_data_that_is_no_file(tmp_path: Path) -> None:
    path = save_outside(tmp_path)
    (tmp_path / "w.bin").mkdir()
    expected = f"TP213 weight w: its data is no regular file: {{folder}}/w.bin. {BELONGS}"
    assert refusal(path) == expected
    (tmp_path / "w.bin").rmdir()
    os.mkfifo(tmp_path / "w.bin")
    assert refusal(path) == expected


def test_a_name_too_long_for_any_file(tmp_path: Path) -> None:
    name = "w" * 5000
    expected = f"TP213 weight w: its data file is missing: {{folder}}/{name}. {BELONGS}"
    assert refusal(save_outside(tmp_path, name)) == expected


LENGTHS = {
    "short file": ((0, 48), 40, "its data is 48 bytes at offset 0, and {folder}/w.bin ends at 40"),
    "offset": ((8, 48), 48, "its data is 48 bytes at offset 8, and {folder}/w.bin ends at 48"),
    "no length": ((8, None), 48, "its data is 48 bytes at offset 8, and {folder}/w.bin ends at 48"),
    "length": ((0, 44), 48, "its data is said to be 44 bytes at offset 0, and float32 [4, 3] takes 48"),
    "negative": ((-8, 48), 48, "its data is said to be 48 bytes at offset -8, and float32 [4, 3] takes 48"),
    "negative length": ((0, -1), 48, "its data is said to be -1 bytes at offset 0, and float32 [4, 3] takes 48"),
    "huge": ((2**70, 48), 48, f"its data is 48 bytes at offset {2**70}, and {{folder}}/w.bin ends at 48"),
    "no number": (("x", 48), 48, "the offset or length of its data is no number"),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_wrong_lengths(case: str, tmp_path: Path) -> None:
    (offset, length), size, fact = LENGTHS[case]
    (tmp_path / "w.bin").write_bytes(b"\0" * size)
    path = save_outside(tmp_path, offset=offset, length=length)  # type: ignore[arg-type]
    assert refusal(path) == f"TP214 weight w: {fact}. {AGAIN}"


def test_all_faults_of_a_kind_at_once(tmp_path: Path) -> None:
    proto = model(
        "g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {1, 2}, float[2] c = {1, 2}>"
        "{ p = Add(x, a) q = Add(p, b) y = Add(q, c) }"
    )
    for tensor, location in zip(proto.graph.initializer, ("../a", "b.bin", "b.bin"), strict=True):
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    assert refusal(path).splitlines() == [
        f"TP211 weight a: its data lies outside the model's folder, at '../a'. {INSIDE}",
        f"TP213 weight b and 1 more: its data file is missing: {{folder}}/b.bin. {BELONGS}",
    ]


@pytest.mark.parametrize(("kind", "elements", "nbytes"), [("INT4", 5, 3), ("UINT2", 5, 2), ("FLOAT4E2M1", 4, 2)])
def test_packed_types(kind: str, elements: int, nbytes: int, tmp_path: Path) -> None:
    number = onnx.TensorProto.DataType.Value(kind)
    proto = model("g (float[2] x) => (float[2] y) <int8[1] w = {1}> { y = Foo(x, w) }")
    weight = proto.graph.initializer[0]
    weight.data_type = number
    weight.dims[:] = [elements]
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(b"\x21" * nbytes)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    assert read_model(path).external == {"w": FileBytes(tmp_path / "w.bin", 0, nbytes)}


def test_a_constant_outside_the_file(tmp_path: Path) -> None:
    proto = model("g (float[2] x) => (float[2] y) { c = Constant <value = float[2] {1, -2}> () y = Add(x, c) }")
    tensor = proto.graph.node[0].attribute[0].t
    data = np.array([1, -2], dtype=np.float32).tobytes()
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="c.bin")
    (tmp_path / "c.bin").write_bytes(data)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    weight = to_program(read_model(path)).values["c"].weight
    assert weight is not None
    assert weight.source == FileBytes(tmp_path / "c.bin", 0, 8)


def test_another_attribute_outside_the_file(tmp_path: Path) -> None:
    proto = model("g (int64[1] x) => (float[N] y) { y = ConstantOfShape <value = float[1] {1}> (x) }")
    tensor = proto.graph.node[0].attribute[0].t
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    expected = (
        "TP213 node 0 (ConstantOfShape): keeps the tensor of an attribute outside the file. "
        "Save the model with that tensor inside"
    )
    assert refusal(path) == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64, np.uint32, np.bool_, ml_dtypes.bfloat16])
def test_typed_fields_give_the_same_bytes_as_raw_data(dtype: type, tmp_path: Path) -> None:
    values: np.ndarray = np.array([1, 0, 3, 2, 0, 1]).astype(dtype)
    raw = onnx.numpy_helper.from_array(values, "w")
    typed = onnx.helper.make_tensor("w", raw.data_type, values.shape, values.tolist())
    assert not typed.HasField("raw_data")
    proto = model("g (float[2] x) => (float[2] y) { y = Foo(x, w) }")
    proto.graph.initializer.append(typed)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    read = read_model(path)
    assert read.bytes_of(read.proto.graph.initializer[0]).data == raw.raw_data  # type: ignore[union-attr]


def test_plain_weights_stay_inside() -> None:
    assert model(PLAIN).graph.initializer[0].data_location == onnx.TensorProto.DEFAULT
