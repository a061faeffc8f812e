"""Where weights outside the model file lie: in regular files of the model's own folder, and behind links if allowed."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath

from onnx import TensorProto

from tpcompile.errors import Fault, raise_all
from tpcompile.graph.contents import Held
from tpcompile.graph.tensors import stored_bytes, type_name
from tpcompile.weights.source import FileBytes, Source

Place = tuple[str, int, int | None]
"""How a tensor names its data: location, offset, length (None where it does not say)."""

_LINKS = "Give --allow-links (allow_links=True) to follow it, once and only for reading, or put the real file there"
_INSIDE = "Data is read from the model's own folder only: move it there and save the model again"


def place_of(tensor: TensorProto) -> Place:
    """What a tensor with external data says of it.

    Raises:
        ValueError: Its offset or length is no number.
    """
    said = {entry.key: entry.value for entry in tensor.external_data}
    length = said.get("length")
    return said.get("location", ""), int(said.get("offset", "0")), None if length is None else int(length)


def find_data(held: Iterable[Held], folder: Path, allow_links: bool, require_data: bool) -> dict[Place, Source]:
    """Check and find the data of every tensor that has it outside the model file.

    With `require_data` false a file that is not there is no fault (a plan needs no weights); all else still is.

    Raises:
        Refused: with every fault: TP211 out of the folder, TP212 a link, TP213 no such file, TP214 wrong length.
    """
    outside = [item for item in held if item.tensor.data_location == TensorProto.EXTERNAL]
    by_location: dict[str, list[Held]] = {}
    for item in outside:
        location = next((entry.value for entry in item.tensor.external_data if entry.key == "location"), "")
        by_location.setdefault(location, []).append(item)
    faults: list[Fault] = []
    sizes: dict[str, tuple[Path, int | None]] = {}
    for location, items in by_location.items():
        what = items[0].where if len(items) == 1 else f"{items[0].where} and {len(items) - 1} more"
        found = _file(folder, location, what, allow_links, require_data)
        if isinstance(found, Fault):
            faults.append(found)
        else:
            sizes[location] = found
    raise_all(faults)
    places: dict[Place, Source] = {}
    for location, items in by_location.items():
        for item in items:
            source = _range(item, *sizes[location])
            if isinstance(source, Fault):
                faults.append(source)
            else:
                places[place_of(item.tensor)] = source
    raise_all(faults)
    return places


def _file(
    folder: Path, location: str, what: str, allow_links: bool, require_data: bool
) -> tuple[Path, int | None] | Fault:
    """The file of that location and its bytes (None where it is absent and may be), or what is wrong with it."""
    windows = PureWindowsPath(location if isinstance(location, str) else "")
    parts = PurePosixPath(location).parts if isinstance(location, str) else ()  # protobuf gives bytes for bad UTF-8
    if not parts or "\0" in location:
        return Fault("TP211", what, f"names its data file {location!r}", _INSIDE)
    if location.startswith("/") or windows.drive or windows.root or ".." in parts or ".." in windows.parts:
        return Fault("TP211", what, f"its data lies outside the model's folder, at {location!r}", _INSIDE)
    path = folder.joinpath(*parts)
    try:
        step = folder
        for part in parts:
            step = step / part
            if step.is_symlink() and not allow_links:
                return Fault("TP212", what, f"its data is behind a link, {step}", _LINKS)
        path = path.resolve(strict=True) if allow_links else path
        facts = path.stat()
    except (OSError, RuntimeError):  # RuntimeError: links that lead to each other
        if not require_data:
            return path, None
        return Fault("TP213", what, f"its data file is missing: {path}", "Put the file there: it belongs to the model")
    if not stat.S_ISREG(facts.st_mode):
        return Fault(
            "TP213", what, f"its data is no regular file: {path}", "Put the file there: it belongs to the model"
        )
    return path, facts.st_size


def _range(item: Held, path: Path, file_bytes: int | None) -> FileBytes | Fault:
    tensor = item.tensor
    shape = f"{type_name(tensor.data_type)} {list(tensor.dims)}"
    need = stored_bytes(tensor.data_type, tensor.dims)
    again = "Fetch the file again, or save the model and its data again, together"
    try:
        _, offset, length = place_of(tensor)
    except ValueError:
        return Fault("TP214", item.where, "the offset or length of its data is no number", again)
    if offset < 0 or (length is not None and length != need):
        at = f"{need if length is None else length} bytes at offset {offset}"
        return Fault("TP214", item.where, f"its data is said to be {at}, and {shape} takes {need}", again)
    if file_bytes is not None and offset + need > file_bytes:
        fact = f"its data is {need} bytes at offset {offset}, and {path} ends at {file_bytes}"
        return Fault("TP214", item.where, fact, again)
    return FileBytes(path, offset, need)
