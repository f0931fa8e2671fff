"""Parquet files whose footers or page headers are changed number by number."""

from pathlib import Path

import compact_thrift as thrift
from compact_thrift import Struct


def footer_of(raw: bytes) -> Struct:
    return thrift.read_struct(raw[_begin(raw) : -8])[0]


def with_footer(raw: bytes, footer: Struct) -> bytes:
    """The same file with another footer."""
    new = thrift.write_struct(footer)
    return raw[: _begin(raw)] + new + len(new).to_bytes(4, "little") + b"PAR1"


def chunk(footer: Struct, group: int, leaf: int) -> Struct:
    """The ColumnMetaData of a chunk."""
    return footer[4].values[group][1].values[leaf][3]


def change(path: Path, edit) -> Path:
    """Let `edit` change the footer of a file."""
    raw = path.read_bytes()
    footer = footer_of(raw)
    edit(footer)
    path.write_bytes(with_footer(raw, footer))
    return path


def change_page(path: Path, at: int, edit) -> Path:
    """Let `edit` change the page header at `at` in a file of one column chunk."""
    raw = path.read_bytes()
    header, end = thrift.read_struct(raw, at)
    edit(header)
    new, footer = thrift.write_struct(header), footer_of(raw)
    chunk(footer, 0, 0)[7] += len(new) - (end - at)
    path.write_bytes(with_footer(raw[:at] + new + raw[end:], footer))
    return path


def _begin(raw: bytes) -> int:
    return len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
