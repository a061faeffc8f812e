"""Where the members of an uncompressed zip lie in its file, so that they can be read by byte ranges.

Nothing is extracted, and nothing that the directory says is believed before it is checked against the file.
"""

from __future__ import annotations

import os
import struct
import zipfile
from itertools import pairwise
from pathlib import Path

from tpcompile.errors import Refused, refuse
from tpcompile.weights.source import FileBytes

LOCAL_HEADER = struct.Struct("<4s5H3I2H")
AGAIN = "Save it again with torch.export.save, or copy the file again"
NOT_OURS = "torch writes no such archive: take it from its source again, and do not trust this copy"


def members_of(path: Path) -> dict[str, FileBytes]:
    """Every member's byte range, by its name below the archive's one top folder.

    Raises:
        Refused: TP731 the file is no zip, or cannot be read; TP732 the zip is damaged, compressed or contradictory.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if not (entry.is_dir() and not entry.file_size)]
            places = {entry.filename: _place(path, file.fileno(), entry, size) for entry in entries}
    except (OSError, zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error) as error:
        raise unreadable(path, error) from error
    if len(places) < len(entries):
        names = [entry.filename for entry in entries]
        twice = next(name for name in names if names.count(name) > 1)
        raise refuse("TP732", str(path), f"holds {twice!r} twice", NOT_OURS)
    _check_apart(path, places)
    tops = {name.partition("/")[0] for name in places}
    if len(tops) != 1 or any("/" not in name for name in places):
        raise refuse("TP731", str(path), "is a zip, but no archive of torch: its members have no common folder",
                     "Give a .pt2 file that torch.export.save wrote")  # fmt: skip
    (top,) = tops
    return {name[len(top) + 1 :]: place for name, place in places.items()}


def unreadable(path: Path, error: Exception) -> Refused:
    """TP731 for what is no zip at all, TP732 for one that breaks off."""
    if isinstance(error, OSError):
        absent = isinstance(error, FileNotFoundError)
        fact = "there is no such file" if absent else f"cannot be read: {error.strerror}"
        return refuse("TP731", str(path), fact, "Give a .pt2 file that torch.export.save wrote")
    with path.open("rb") as file:
        begins_as_zip = file.read(4) == b"PK\x03\x04"
    if begins_as_zip:
        return refuse("TP732", str(path), f"the zip is damaged or breaks off ({error})", AGAIN)
    return refuse("TP731", str(path), "is no zip, and so no .pt2 archive",
                  "Give a .pt2 file that torch.export.save wrote")  # fmt: skip


def _place(path: Path, descriptor: int, entry: zipfile.ZipInfo, size: int) -> FileBytes:
    """The byte range of a member, after the local header that stands before it."""
    name, stored = entry.filename, entry.orig_filename
    if any(mark in stored for mark in ("\\", "\0", ":")) or {"", ".", ".."} & set(stored.split("/")):
        raise refuse("TP732", str(path), f"has a member {stored!r}, which leads out of the archive", NOT_OURS)
    if entry.flag_bits & 1:
        raise refuse("TP732", str(path), f"member {name!r} is encrypted", AGAIN)
    if entry.compress_type != zipfile.ZIP_STORED:
        raise refuse("TP732", str(path), f"member {name!r} is compressed, and weights are read in place", AGAIN)
    header = os.pread(descriptor, LOCAL_HEADER.size, entry.header_offset)
    signature, _, _, method, *_, name_bytes, extra_bytes = LOCAL_HEADER.unpack(header)
    start = entry.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes
    raw_name = stored.encode("utf-8" if entry.flag_bits & 0x800 else "cp437")
    local = os.pread(descriptor, name_bytes, entry.header_offset + LOCAL_HEADER.size)
    if signature != b"PK\x03\x04" or method != zipfile.ZIP_STORED or local != raw_name:
        raise refuse("TP732", str(path), f"member {name!r} is not where the directory says", AGAIN)
    if entry.file_size != entry.compress_size or start + entry.file_size > size:
        fact = f"member {name!r} is said to have {entry.file_size:,} bytes, which are not all there"
        raise refuse("TP732", str(path), fact, AGAIN)
    return FileBytes(path, start, entry.file_size)


def _check_apart(path: Path, places: dict[str, FileBytes]) -> None:
    """Refuse members that share bytes."""
    ordered = sorted((place.offset, place.offset + place.nbytes, name) for name, place in places.items())
    for (_, end, name), (start, _, following) in pairwise(ordered):
        if start < end:
            raise refuse("TP732", str(path), f"members {name!r} and {following!r} share bytes", NOT_OURS)


def read_member(place: FileBytes) -> bytes:
    """The bytes of a member (short ones: texts and settings)."""
    with place.path.open("rb") as file:
        file.seek(place.offset)
        return file.read(place.nbytes)
