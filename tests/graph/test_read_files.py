"""What is no ONNX file, no file, or damaged: refused with the whole text."""

from __future__ import annotations

import os
import pickle
import random
import zipfile
from pathlib import Path

import onnx
import pytest

from tests.graph.models import EVERYTHING, PLAIN, WEIGHT, model
from tpcompile.errors import Refused
from tpcompile.graph.from_onnx import to_program
from tpcompile.graph.read import read_model

ONNX_FIRST = "Export the model to ONNX first (torch.onnx.export, optimum, onnxruntime-genai) and give the .onnx file"
NO_PICKLE = "It is never unpickled here: load it in a script of yours and give tpcompile.compile() the torch.nn.Module"


def refusal(path: Path) -> str:
    """The text of the refusal to read `path`, with {path} in its place."""
    with pytest.raises(Refused) as caught:
        read_model(path)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(str(path), "{path}")


def test_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model(PLAIN).SerializeToString())
    read = read_model(str(path))
    assert (read.file, read.folder, read.nbytes) == ("m.onnx", tmp_path, path.stat().st_size)
    assert read.external == {}
    assert bytes(read.bytes_of(read.proto.graph.initializer[0]).data) == WEIGHT.tobytes()  # type: ignore[union-attr]


def test_the_model_file_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(model(PLAIN).SerializeToString())
    (tmp_path / "m.onnx").symlink_to("blob")
    assert read_model(tmp_path / "m.onnx").file == "m.onnx"


def test_no_such_file(tmp_path: Path) -> None:
    expected = "TP201 {path}: there is no such file. Give the path of an .onnx file"
    assert refusal(tmp_path / "absent.onnx") == expected


def test_a_file_as_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    expected = "TP201 {path}: cannot be read: Not a directory. Give the path of an .onnx file"
    assert refusal(tmp_path / "f" / "m.onnx") == expected


def test_a_name_with_a_null() -> None:
    with pytest.raises(Refused) as caught:
        read_model("a\0b.onnx")
    expected = "TP201 a\0b.onnx: cannot be read: embedded null byte. Give the path of an .onnx file"
    assert str(caught.value) == expected


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == "TP201 {path}: is no regular file. Give the path of an .onnx file"


def test_a_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "TP204 {path}: is a folder without an .onnx file. Give the path of an .onnx file"
    for name in ("b.onnx", "a.onnx", "c.txt"):
        (tmp_path / name).write_bytes(b"")
    expected = "TP204 {path}: is a folder; it holds a.onnx, b.onnx. Give the file, as in {path}/a.onnx"
    assert refusal(tmp_path) == expected
    for number in range(9):
        (tmp_path / f"x{number}.onnx").write_bytes(b"")
    assert "it holds a.onnx, b.onnx, x0.onnx, x1.onnx, x2.onnx, x3.onnx, x4.onnx, x5.onnx and 3 more." in refusal(
        tmp_path
    )


SAFETENSORS = (b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"\0\0\0\0")

OTHER_FILES = {
    "empty": (b"", "an empty file", "Fetch or export it again"),
    "pickle": (pickle.dumps({"w": 1}, 2), "a Python pickle, as torch.save (.pt, .pth, .bin) wrote", NO_PICKLE),
    "pickle 4": (pickle.dumps({"w": 1}, 4), "a Python pickle", NO_PICKLE),
    "safetensors": (
        len(SAFETENSORS[0]).to_bytes(8, "little") + b"".join(SAFETENSORS),
        "a safetensors file: weights without a graph",
        ONNX_FIRST,
    ),
    "gguf": (b"GGUF\x03\0\0\0", "a GGUF file: weights without a graph", ONNX_FIRST),
    "hdf5": (
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file, as Keras writes",
        "Convert it to ONNX first (tf2onnx) and give the .onnx file",
    ),
    "tflite": (
        b"\x1c\0\0\0TFL3",
        "a TensorFlow Lite model",
        "Convert it to ONNX first (tf2onnx) and give the .onnx file",
    ),
    "ort": (
        b"\x1c\0\0\0ORTM",
        "a model in ONNX Runtime's own format (.ort)",
        "Give the .onnx file it was made from",
    ),
    "engine": (b"ftrt\0\0", "a TensorRT engine", "Give the .onnx file it was built from"),
    "gzip": (b"\x1f\x8b\x08\0", "a gzip archive", "Unpack it first and give the .onnx file"),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "a Git LFS pointer, not the file itself",
        "Run `git lfs pull` in its repository",
    ),
    "onnx text": (
        b'<ir_version: 10, opset_import: ["" : 20]>\ng () => () {}',
        "an ONNX model written as text",
        "Turn it into a file first: onnx.save(onnx.parser.parse_model(text), path)",
    ),
    "xml": (b'<?xml version="1.0"?>', "XML text, as OpenVINO writes", "Give the .onnx file it was converted from"),
    "html": (
        b"<!DOCTYPE html><html>",
        "a web page, perhaps a download that failed",
        "Fetch the .onnx file again",
    ),
    "json": (b'{"a": 1}', "JSON text", "Give the .onnx file itself"),
    "text": (b"hello world\n", "text (.onnx)", "Give the .onnx file itself"),
}


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_other_kinds_of_files(kind: str, tmp_path: Path) -> None:
    content, what, remedy = OTHER_FILES[kind]
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert refusal(path) == f"TP202 {{path}}: is {what}, not an ONNX model. {remedy}"


@pytest.mark.parametrize("suffix", ["pt", "pth", "bin", "pt2"])
def test_torch_archives_are_never_opened(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"m.{suffix}"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"cposix\nsystem\n(S'touch /tmp/harm'\ntR.")
    what = "a zip archive, as torch.save (.pt, .pth, .bin) and torch.export.save (.pt2) write"
    assert refusal(path) == f"TP202 {{path}}: is {what}, not an ONNX model. {NO_PICKLE}"


def test_too_large_for_onnx(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as stream:
        stream.write(model(PLAIN).SerializeToString())
        stream.truncate(3 << 30)  # a hole: takes no space
    expected = (
        "TP202 {path}: has 3221225472 bytes, and an ONNX file ends below 2 GiB. "
        "Give the .onnx file; larger weights lie in a file beside it"
    )
    assert refusal(path) == expected


AGAIN = "Copy or export it again; if it is no ONNX model, export one"


def test_damaged(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x0a\xff\xff\xff")
    assert refusal(path) == f"TP203 {{path}}: is damaged, breaks off, or is no ONNX model (5 bytes). {AGAIN}"
    path.write_bytes(b"\x08\x0a\x12\x01a")
    assert refusal(path) == f"TP203 {{path}}: has no graph: it breaks off or is no ONNX model. {AGAIN}"
    path.write_bytes(b"\x12\x01a\xf8\x01\x01")
    assert refusal(path) == f"TP203 {{path}}: has no IR version: it breaks off or is no ONNX model. {AGAIN}"


def load(path: Path, content: bytes) -> bool:
    """Whether a file of that content loads; anything but a refusal or a program is an error."""
    path.write_bytes(content)
    try:
        to_program(read_model(path))
    except Refused as refused:
        assert all(fault.code.startswith("TP2") and fault.fact and fault.remedy for fault in refused.faults)
        return False
    return True


def test_every_prefix_is_refused_or_loads(tmp_path: Path) -> None:
    whole = onnx.parser.parse_model(EVERYTHING).SerializeToString()
    path = tmp_path / "m.onnx"
    assert load(path, whole)
    loaded = [length for length in range(len(whole)) if load(path, whole[:length])]
    assert len(loaded) <= 3, "only cuts between the last fields, behind the graph, leave a model"


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_are_refused_or_load(seed: int, tmp_path: Path) -> None:
    whole = onnx.parser.parse_model(EVERYTHING).SerializeToString()
    path = tmp_path / "m.onnx"
    draw = random.Random(seed)
    loaded = 0
    for _ in range(600):
        content = bytearray(whole)
        for _ in range(draw.choice([1, 1, 1, 2, 4])):
            place = draw.randrange(len(content))
            flip = draw.random() < 0.6
            content[place] = content[place] ^ (1 << draw.randrange(8)) if flip else draw.randrange(256)
        loaded += load(path, bytes(content))
    assert 0 < loaded < 600
