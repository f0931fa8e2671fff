"""Thrift's compact protocol, as Parquet uses it: plain, slow, and able to write back what was changed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
NUMBERS = (I16, I32, I64)


@dataclass
class Items:
    """A list; `kind` is that of its elements."""

    kind: int
    values: list[Any]


class Struct(dict[int, Any]):
    """Field number -> value; `kinds`: field number -> kind."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[int, int] = {}

    def put(self, field: int, kind: int, value: Any) -> None:
        self[field], self.kinds[field] = value, kind


def read_struct(raw: bytes, at: int = 0) -> tuple[Struct, int]:
    """(struct, where it ends)."""
    found, field = Struct(), 0
    while True:
        head = raw[at]
        at += 1
        if head == 0:
            return found, at
        if head >> 4:
            field += head >> 4
        else:
            field, at = _read_zigzag(raw, at)
        value, at = _read(raw, at, head & 15)
        found.put(field, head & 15, value)


def write_struct(struct: Struct) -> bytes:
    out, before = bytearray(), 0
    for field in sorted(struct):
        kind = struct.kinds[field]
        if kind in (TRUE, FALSE):
            kind = TRUE if struct[field] else FALSE
        step = field - before
        out += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + varint(_zigzag(field))
        out += b"" if kind in (TRUE, FALSE) else _write(struct[field], kind)
        before = field
    return bytes(out) + b"\0"


def numbers(struct: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, container, key) of every integer below."""
    if isinstance(struct, Struct):
        pairs = [(field, struct.kinds[field], struct[field]) for field in struct]
    elif isinstance(struct, Items):
        pairs = [(place, struct.kind, value) for place, value in enumerate(struct.values)]
    else:
        return
    for key, kind, value in pairs:
        if kind in NUMBERS:
            yield f"{path}.{key}", struct if isinstance(struct, Struct) else struct.values, key
        else:
            yield from numbers(value, f"{path}.{key}")


def _read(raw: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (TRUE, FALSE):
        return kind == TRUE, at
    if kind == BYTE:
        return raw[at], at + 1
    if kind in NUMBERS:
        return _read_zigzag(raw, at)
    if kind == DOUBLE:
        return raw[at : at + 8], at + 8
    if kind == BINARY:
        size, at = _read_varint(raw, at)
        return raw[at : at + size], at + size
    if kind in (LIST, SET):
        head, at = raw[at], at + 1
        size = head >> 4
        if size == 15:
            size, at = _read_varint(raw, at)
        values = []
        for _ in range(size):
            if head & 15 in (TRUE, FALSE):
                value, at = raw[at] == TRUE, at + 1
            else:
                value, at = _read(raw, at, head & 15)
            values.append(value)
        return Items(head & 15, values), at
    if kind == STRUCT:
        return read_struct(raw, at)
    raise ValueError(f"kind {kind} at {at}")


def _write(value: Any, kind: int) -> bytes:
    if kind in (TRUE, FALSE):
        return bytes([TRUE if value else FALSE])
    if kind == BYTE:
        return bytes([value])
    if kind in NUMBERS:
        return varint(_zigzag(value))
    if kind == DOUBLE:
        return value
    if kind == BINARY:
        return varint(len(value)) + value
    if kind in (LIST, SET):
        size = len(value.values)
        head = bytes([size << 4 | value.kind]) if size < 15 else bytes([0xF0 | value.kind]) + varint(size)
        return head + b"".join(_write(one, value.kind) for one in value.values)
    return write_struct(value)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (raw[at] & 127) << shift
        shift += 7
        at += 1
        if raw[at - 1] < 128:
            return value, at


def _read_zigzag(raw: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(raw, at)
    return value >> 1 ^ -(value & 1), at


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _zigzag(value: int) -> int:
    return (value << 1 ^ value >> 63) & (1 << 64) - 1
