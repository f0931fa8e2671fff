"""Encodes lists with one text, bytes or number per sample, such as ids, as bytes that travel with the samples.

An entry is encoded as one letter for its type, then its bytes. So a list may mix types, every type is restored exactly
(a subclass is refused), and nothing that a peer sent is unpickled. Like passthrough texts, the bytes form a group whose
lengths do not count as work of a sample.
"""

import struct
from typing import Any

import numpy as np
import torch

from fsdata.errors import DataError

ENTRIES = "entries of "
"""Prefix of the names of the groups of these bytes."""
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
    encoded = [_encode(entry) for entry in value]
    data = np.frombuffer(b"".join(encoded), np.uint8).copy()  # torch warns about memory that is read-only
    return torch.from_numpy(data), np.array([len(entry) for entry in encoded], np.int64)


def from_bytes(data: torch.Tensor, length: np.ndarray, make: type) -> Any:
    """The inverse of `to_bytes`. make: the type of the result: list, tuple or numpy.ndarray.

    Raises:
        DataError: the bytes were not encoded by `to_bytes`.
    """
    text, stop = data.numpy().tobytes(), np.cumsum(length)
    bounds = zip((stop - length).tolist(), stop.tolist(), strict=True)
    try:
        entries = [_decode(text[first:last]) for first, last in bounds]
    except (ValueError, KeyError, struct.error) as error:  # bytes of a peer are not trusted
        raise DataError(f"another rank sent an entry that cannot be read: {error!r}") from error
    if make is not np.ndarray:
        return make(entries)
    array = np.empty(len(entries), object)
    array[:] = entries
    return array


_LETTERS = {str: b"s", bytes: b"b", int: b"i", float: b"f", bool: b"t", type(None): b"n"}


def _encode(entry: Any) -> bytes:
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


def _decode(encoded: bytes) -> Any:
    letter, content = encoded[:1], encoded[1:]
    if letter == b"s":
        return content.decode("utf-8", "surrogatepass")
    if letter == b"b":
        return content
    if letter == b"i":
        return int.from_bytes(content, "little", signed=True)
    if letter == b"f":
        return _FLOAT.unpack(content)[0]
    return {b"t": bool(content), b"n": None}[letter]
