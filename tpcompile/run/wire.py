"""Messages with arrays over a stream: a JSON header, then the raw memory of each array. Nothing is unpickled."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from tpcompile.run.tensors import TYPES, Array

PREFIX = struct.Struct("<QQ")
"""Bytes of the header, bytes of all that follows it."""


def pack(head: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytearray:
    """One message: `head` (JSON) and `arrays`."""
    described = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps({**head, "arrays": described}).encode()
    body = [np.ascontiguousarray(array).tobytes() for array in arrays.values()]
    return bytearray(b"".join([PREFIX.pack(len(text), sum(map(len, body))), text, *body]))


def unpack(message: bytearray) -> tuple[dict[str, Any], dict[str, Array]]:
    """The head and the arrays of one message."""
    size, _ = PREFIX.unpack_from(message)
    at = PREFIX.size + size
    head = json.loads(message[PREFIX.size : at])
    arrays = {}
    for name, dtype, shape in head.pop("arrays"):
        kind = np.dtype(TYPES[dtype][1])
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(message, kind, count, at).reshape(shape)
        at += count * kind.itemsize
    return head, arrays


def receive(stream: socket.socket) -> bytearray | None:
    """The next message from `stream`, None where the other side has closed it."""
    prefix = _exactly(stream, PREFIX.size)
    if prefix is None:
        return None
    rest = _exactly(stream, sum(PREFIX.unpack(prefix)))
    return None if rest is None else prefix + rest


def _exactly(stream: socket.socket, size: int) -> bytearray | None:
    received = bytearray(size)
    view = memoryview(received)
    while view:
        try:
            count = stream.recv_into(view)
        except ConnectionError:
            return None
        if not count:
            return None
        view = view[count:]
    return received
