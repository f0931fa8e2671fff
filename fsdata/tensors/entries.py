"""Lists with one entry per sample that is no tensor, such as ids: texts, bytes and numbers, which travel as bytes.

Every entry is a letter for its type and its bytes, so nothing that a peer sent is unpickled, and a list may mix types.
Types are compared exactly: what arrives is what was sent. The bytes travel as those of passthrough texts do, in a group
whose lengths say nothing of a sample's work.
"""

import struct
from typing import Any

import numpy as np
import torch

from fsdata.errors import DataError

ENTRIES = "entries of "
"""Prefix of the groups of these bytes."""
TYPES = "str, bytes, int, float, bool and None"
_FLOAT = struct.Struct("<d")


def may_move(value: Any) -> bool:
    """Whether it is a list, tuple or numpy array of objects whose entries can move with their samples."""
    return is_list(value) and {type(entry) for entry in value} <= _LETTERS.keys()


def is_list(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype == object and value.ndim == 1
    return type(value) in (list, tuple)


def to_bytes(value: Any) -> tuple[torch.Tensor, np.ndarray]:
    """(uint8 [T], the bytes of all entries; int64 [B], how many each has)."""
    written = [_written(entry) for entry in value]
    data = np.frombuffer(b"".join(written), np.uint8).copy()
    return torch.from_numpy(data), np.array([len(each) for each in written], np.int64)


def from_bytes(data: torch.Tensor, length: np.ndarray, make: type) -> Any:
    """The entries again, in a `make`: list, tuple or numpy.ndarray.

    Raises:
        DataError: the bytes are none of `to_bytes`.
    """
    text, stop = data.numpy().tobytes(), np.cumsum(length)
    try:
        found = [_read(text[first:last]) for first, last in zip((stop - length).tolist(), stop.tolist(), strict=True)]
    except (ValueError, KeyError, struct.error) as error:
        raise DataError(f"another rank sent an entry that cannot be read: {error!r}") from error
    if make is not np.ndarray:
        return make(found)
    array = np.empty(len(found), object)
    array[:] = found
    return array


_LETTERS = {str: b"s", bytes: b"b", int: b"i", float: b"f", bool: b"t", type(None): b"n"}


def _written(entry: Any) -> bytes:
    kind = type(entry)
    if kind is str:
        content = entry.encode("utf-8", "surrogatepass")
    elif kind is bytes:
        content = entry
    elif kind is int:
        content = entry.to_bytes(entry.bit_length() // 8 + 1, "little", signed=True)
    elif kind is float:
        content = _FLOAT.pack(entry)
    else:
        content = b"1" if entry else b""
    return _LETTERS[kind] + content


def _read(written: bytes) -> Any:
    letter, content = written[:1], written[1:]
    if letter == b"s":
        return content.decode("utf-8", "surrogatepass")
    if letter == b"b":
        return content
    if letter == b"i":
        return int.from_bytes(content, "little", signed=True)
    if letter == b"f":
        return _FLOAT.unpack(content)[0]
    return {b"t": bool(content), b"n": None}[letter]
