"""What a file that is not an ONNX model looks like, from its first bytes alone; nothing is decoded or executed."""

from __future__ import annotations

from pathlib import Path

HEAD_BYTES = 512

_EXPORT = "Export the model to ONNX first (torch.onnx.export, optimum, onnxruntime-genai) and give the .onnx file"
_TORCH = "It is never unpickled here: load it in a script of yours and give tpcompile.compile() the torch.nn.Module"

_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive, as torch.save (.pt, .pth, .bin) and torch.export.save (.pt2) write", _TORCH),
    (0, b"\x80\x02", "a Python pickle, as torch.save (.pt, .pth, .bin) wrote", _TORCH),
    (0, b"\x80\x03", "a Python pickle", _TORCH),
    (0, b"\x80\x04", "a Python pickle", _TORCH),
    (0, b"\x80\x05", "a Python pickle", _TORCH),
    (0, b"GGUF", "a GGUF file: weights without a graph", _EXPORT),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes", "Convert it to ONNX first (tf2onnx) and give the .onnx file"),
    (4, b"TFL3", "a TensorFlow Lite model", "Convert it to ONNX first (tf2onnx) and give the .onnx file"),
    (4, b"ORTM", "a model in ONNX Runtime's own format (.ort)", "Give the .onnx file it was made from"),
    (0, b"ftrt", "a TensorRT engine", "Give the .onnx file it was built from"),
    (0, b"ptrt", "a TensorRT engine", "Give the .onnx file it was built from"),
    (0, b"\x1f\x8b", "a gzip archive", "Unpack it first and give the .onnx file"),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the file itself", "Run `git lfs pull` in its repository"),
)


def looks_like(path: Path, head: bytes) -> tuple[str, str] | None:
    """Say (what the file is, what to do) for a file that is plainly no ONNX model; None where it may be one."""
    if not head:
        return "an empty file", "Fetch or export it again"
    for offset, magic, what, remedy in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return what, remedy
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 30:
        return "a safetensors file: weights without a graph", _EXPORT
    return _text(path, head)


def _text(path: Path, head: bytes) -> tuple[str, str] | None:
    start = head.lstrip()
    if not start or any(byte < 9 or 13 < byte < 32 for byte in head):
        return None
    if start[:1] == b"<" and start[1:11] == b"ir_version":
        return (
            "an ONNX model written as text",
            "Turn it into a file first: onnx.save(onnx.parser.parse_model(text), path)",
        )
    if start[:5] == b"<?xml":
        return "XML text, as OpenVINO writes", "Give the .onnx file it was converted from"
    if start[:5].lower() in (b"<!doc", b"<html"):
        return "a web page, perhaps a download that failed", "Fetch the .onnx file again"
    if start[:1] in (b"{", b"["):
        return "JSON text", "Give the .onnx file itself"
    return f"text ({path.suffix or 'no suffix'})", "Give the .onnx file itself"
