"""Parquet files whose pages are damaged after decompression: every seed is one file and some damage.

`python damaged_pages.py FOLDER FIRST LAST` reads the files of these seeds by both decoders and prints one JSON line
before and one after each.
"""

import copy
import ctypes
import mmap
import random
import re
import traceback
import warnings
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import compact_thrift as thrift
import cramjam
import numpy as np
import pyarrow as pa
from compact_thrift import Struct
from damaged import ENDS, good_file, play, wrong_number
from footers import footer_of, with_footer

CODECS = {0: "none", 1: "snappy", 2: "gzip", 6: "zstd", 7: "lz4"}  # by their number in a footer
DICTIONARY, DATA_V2 = 2, 3
DELTAS, POSITIONS = 5, 8


@dataclass
class Page:
    """One page; `body` is not compressed.

    Attributes:
        sizes: whether the header says the true sizes. head: bytes of the header, if they are not those of `header`.
    """

    header: Struct
    body: bytearray
    sizes: bool = True
    head: bytes | None = None

    @property
    def inner(self) -> Struct:
        found = self.header.get(self.header.get(1, 0) + 5)
        return found if isinstance(found, Struct) else Struct()

    @property
    def levels(self) -> int:
        """Bytes that are never compressed."""
        if self.header.get(1) != DATA_V2:
            return 0
        said = sum(self.inner[number] for number in (5, 6) if self.inner.kinds.get(number) == thrift.I32)
        return min(max(said, 0), len(self.body))

    def encode(self, encoding: int) -> None:
        self.inner.put(4 if self.header.get(1) == DATA_V2 else 2, thrift.I32, encoding)

    def true_sizes(self) -> None:
        self.header[2], self.header[3] = len(self.body), len(self.body)


def damaged(seed: int) -> tuple[str, bytes]:
    """(which damage, the file)."""
    what, _, raw = _made(seed)
    return what, raw


def _made(seed: int) -> tuple[str, bool, bytes]:
    """And whether some pages have no values."""
    rng = random.Random(seed)
    codec = rng.choice(["none", "none", "none", "snappy", "gzip", "zstd", "lz4"])
    page = rng.choice([8, 100, 1 << 20])  # at 1 there are pages of no values, where pyarrow stops reading
    options = {"compression": codec, "data_page_size": page, "row_group_size": rng.choice([150, 300])}
    raw = good_file(rng, rng.choice([1, 3, 20, 90, 300]), nulls=True, **options)
    footer = footer_of(raw)
    chunks = [column[3] for group in footer[4].values for column in group[1].values]
    content = [_pages(raw, chunk) for chunk in chunks]
    if seed % 16 == 0:
        return "none", _some_empty(content), raw
    damage, number = rng.choice(DAMAGES), rng.randrange(len(chunks))
    check = rng.choice(["kept", "right", "right", "none"])
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        damage(content[number], chunks[number], rng)
    return damage.__name__, _some_empty(content), _written(raw, footer, chunks, content, check)


def _some_empty(content: list[list[Page]]) -> bool:
    return any(page.inner.get(1, 0) <= 0 for pages in content for page in pages)


def _pages(raw: bytes, chunk: Struct) -> list[Page]:
    at = min(filter(None, (chunk[9], chunk.get(11))))
    end, pages = at + chunk[7], []
    while at < end:
        header, begin = thrift.read_struct(raw, at)
        at = begin + header[3]
        page = Page(header, bytearray(raw[begin:at]))
        levels, codec = page.levels, CODECS[chunk[4]]
        if codec != "none" and len(page.body) > levels and page.inner.get(7, True):
            page.body[levels:] = _unpacked(bytes(page.body[levels:]), header[2] - levels, codec)
        pages.append(page)
    return pages


def _unpacked(data: bytes, size: int, codec: str) -> bytes:
    if codec == "gzip":
        return bytes(cramjam.gzip.decompress(data))
    return pa.Codec("lz4_raw" if codec == "lz4" else codec).decompress(data, size).to_pybytes()


def _written(raw: bytes, footer: Struct, chunks: list[Struct], content: list[list[Page]], check: str) -> bytes:
    """The file again, with other pages. check: checksums are kept as they were, made right, or left out."""
    out = bytearray(b"PAR1")
    for chunk, pages in zip(chunks, content, strict=True):
        begin, data, unpacked, codec = len(out), None, 0, CODECS[chunk[4]]
        for page in pages:
            at, levels, body = len(out), page.levels, bytes(page.body)
            if codec != "none" and len(body) > levels and page.inner.get(7, True):
                packed = pa.Codec("lz4_raw" if codec == "lz4" else codec).compress(body[levels:])
                body = body[:levels] + packed.to_pybytes()
            header = copy.deepcopy(page.header)
            if page.sizes:
                header[2], header[3] = len(page.body), len(body)
            if check == "right" and 4 in header:
                checksum = zlib.crc32(body)
                header[4] = checksum - (1 << 32) if checksum >> 31 else checksum
            elif check == "none":
                header.pop(4, None)
            out += (thrift.write_struct(header) if page.head is None else page.head) + body
            unpacked += len(page.body) + 100
            if page.header.get(1) != DICTIONARY and data is None:
                data = at
        chunk[7] = len(out) - begin
        chunk[6] = min(unpacked, chunk[7]) if codec == "none" else unpacked
        chunk[9] = begin if data is None else data
        if 11 in chunk:
            chunk[11] = begin
    for group in footer[4].values:
        group.pop(5, None)  # where it begins
    return with_footer(bytes(out) + raw[-8 - int.from_bytes(raw[-8:-4], "little") :], footer)


def bits(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """Anywhere, or of levels, widths and the heads of blocks."""
    body = rng.choice(pages).body
    most = min(len(body), rng.choice([14, len(body)]))
    for _ in range(rng.choice([1, 1, 2, 8]) if body else 0):
        body[rng.randrange(most)] ^= 1 << rng.randrange(8)


def splice(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """Some bytes become others, more or fewer."""
    body, size = rng.choice(pages).body, rng.choice([1, 2, 4, 9, 64, 1000])
    begin = max(rng.choice([0, len(body) - size, len(body), rng.randrange(len(body) + 1)]), 0)
    filler = rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size), b""])
    body[begin : begin + rng.choice([0, size, size])] = filler


def giant(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """A varint, of a run or of a block of deltas."""
    body = rng.choice(pages).body
    at = rng.choice([0, 1, 4, 5, 6, 8, rng.randrange(len(body) + 1)])
    varint = thrift.varint(max(rng.choice(ENDS) + rng.choice([-1, 0, 1]), 0) << 1 | rng.randrange(2))
    varint = rng.choice([varint, b"\xff" * rng.choice([5, 9, 10, 20]) + b"\1", b"\x80" * 9 + b"\1"])
    body[at : at + rng.choice([0, 1, len(varint)])] = varint


def runs(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """What follows the levels is positions, of any width and in any runs."""
    page = pages[-1] if rng.random() < 0.5 else rng.choice(pages)
    made = bytearray([rng.choice([0, 1, 2, 3, 7, 8, 9, 16, 25, 31, 32, 33, 255])])
    for _ in range(rng.choice([1, 2, 10])):
        if rng.random() < 0.5:
            groups = rng.choice([0, 1, 2, 8, 63])
            made += bytes([groups << 1 | 1])
            made += rng.choice([bytes, rng.randbytes])(rng.choice([0, 1, groups, groups * 3]))
        else:
            made += bytes([rng.randrange(64) << 1]) + rng.choice([b"\0", b"\1", bytes(2), bytes(4), b"\xff" * 4])
    page.body[rng.choice([0, page.levels, page.levels, 6, 8]) :] = made
    page.encode(rng.choice([POSITIONS, POSITIONS, 2]))


def deltas(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """What follows the levels is deltas, in blocks of any size."""
    page = rng.choice(pages)
    block, parts = rng.choice([(128, 4), (128, 4), (128, 1), (256, 2), (1 << 20, 4), (0, 0), (128, 0), (64, 2), (1, 1)])
    head = (block, parts, rng.choice([0, 1, 20, 300, 1 << 40]), rng.choice([0, 5, (1 << 64) - 1]))
    made = bytearray(b"".join(map(thrift.varint, head)))
    for _ in range(rng.randrange(4)):
        widths = bytes(rng.choice([0, 1, 7, 31, 32, 33, 57, 58, 63, 64, 65, 255]) for _ in range(parts % 8))
        made += bytes([rng.choice([0, 1, 126])]) + widths
        made += rng.randbytes(rng.choice([0, 3, sum(widths) * 4, sum(widths) * 4]))
    page.body[rng.choice([0, page.levels, page.levels, 6, 8]) :] = made
    page.encode(DELTAS)


def order(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """A page is missing, there twice, in another place, with another's body, or without values."""
    at, other = rng.randrange(len(pages)), rng.randrange(len(pages))
    what = rng.choice(["missing", "twice", "moved", "body", "empty"])
    if what == "body":
        pages[at].body = bytearray(pages[other].body)
        return
    page = copy.deepcopy(pages[at])
    if what in ("missing", "moved") and len(pages) > 1:
        del pages[at]
    if what == "empty":
        page.inner.put(1, thrift.I32, 0)
        page.body = rng.choice([page.body, bytearray()])
    if what != "missing":
        pages.insert(other, page)


def encoding(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    rng.choice(pages).encode(rng.choice([0, 2, 3, 4, 5, 6, 7, 8, 9, 10, -1]))


def kind(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    page = rng.choice(pages)
    inner, page.header[1] = page.inner, rng.choice([0, 1, 2, 3, 4])
    if rng.random() < 0.7:
        page.header.put(page.header[1] + 5, thrift.STRUCT, inner)


def header_numbers(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    page = rng.choice(pages)
    page.sizes = False
    page.true_sizes()
    for _ in range(rng.choice([1, 1, 2])):
        wrong_number(page.header, rng)


def counts(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """How many values a page has, and how long its levels are."""
    page = rng.choice(pages)
    fields = [number for number in (1, 1, 2, 3, 5, 6) if page.inner.kinds.get(number) == thrift.I32]
    if fields:
        field = rng.choice(fields)
        page.inner[field] = max(page.inner[field] + rng.choice([-1, 1, 8, -8, 100, *ENDS]), -(1 << 63))


def values(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """How many values the chunk and its last page have; together the damage that says least."""
    some = rng.choice([1, 2, 8, 9, 1000, 1 << 20, 1 << 31, 1 << 40])
    chunk[5] += some
    pages[-1].inner.put(1, thrift.I32, pages[-1].inner.get(1, 0) + some)


def heads(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    page = rng.choice(pages)
    page.true_sizes()
    head = bytearray(thrift.write_struct(page.header))
    long_list, long_text = b"\xf9\xf0" + b"\xff" * 8 + b"\x01", b"\xf8" + b"\xff" * 4 + b"\x0f"
    garbage = [long_list, b"\xfc" * 80, b"\x19\x19\x19", long_text, rng.randbytes(1), rng.randbytes(20)]
    for _ in range(rng.choice([1, 2])):
        at = rng.randrange(len(head))
        head[at : at + rng.choice([0, 1, 5])] = rng.choice(garbage)
    page.head = bytes(head)


DAMAGES: tuple[Callable[[list[Page], Struct, random.Random], None], ...] = (
    bits, bits, bits, splice, splice, giant, runs, runs, deltas, order, order, encoding, kind, header_numbers, counts,
    values, heads,
)  # fmt: skip


def read_with(path: Path, decoder: str) -> tuple[str, object]:
    """("rows", all of them), or the name of the error and what it says."""
    from parquet import opened, read_all
    from random_files import DEFAULTS

    from fsdata import ParquetSource, Schema, Sequence
    from fsdata.errors import FreeScaleError

    schema = Schema(
        sequences=(Sequence("ids", ("items",)), Sequence("numbers", floats=("costs",), max_length=50)),
        context=("user",),
        dense=("price",),
    )
    defaults = {name: value for name, value in DEFAULTS.items() if name != "kinds"}
    try:
        source, layout = opened(ParquetSource(path, defaults=defaults, decoder=decoder), schema)
        try:
            return "rows", read_all(source, layout)
        finally:
            source.close()
    except FreeScaleError as error:
        return type(error).__name__, str(error)


def fault(ours: tuple[str, object], arrows: tuple[str, object], seed: int) -> str | None:
    """What is wrong with our answer, if something is. Where pages have no values pyarrow stops reading lists, and the
    loader then misses rows."""
    if ours[0] == "CorruptFileError" or ours == arrows or (ours[0] == arrows[0] == "DataError"):
        return None
    if re.search("rows where the footer says|do not have the same size", str(arrows[1])) and _made(seed)[1]:
        return None
    return f"pyarrow: {str(arrows)[:300]}; pages: {str(ours)[:300]}"


def read_by_both(path: Path, seed: int) -> tuple[dict[str, str], list[str]]:
    """What each decoder said, and what is wrong with that."""
    arrows, ours, faults = read_with(path, "pyarrow"), ("", ""), []
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory is that of our decoder
    try:
        ours = read_with(path, "pages")
        faults += filter(None, [fault(ours, arrows, seed)])
        if seed % 16 == 0 and ours[0] != "rows":
            faults.append(f"not damaged, but {ours}")
    except Exception:
        faults.append(traceback.format_exc())
    return {"pages": ours[0], "pyarrow": arrows[0]}, faults


def guard_memory() -> None:
    """From now on bytes of pages stand before memory that cannot be read: reading beyond them ends the process."""
    from fsdata.decode import reused_buffers

    protect = ctypes.CDLL(None, use_errno=True).mprotect

    def take(_: reused_buffers.Pool, size: int) -> reused_buffers.Lease:
        room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = np.frombuffer(mmap.mmap(-1, room + mmap.PAGESIZE), np.uint8)
        end = memory.ctypes.data + room
        assert protect(ctypes.c_void_p(end), mmap.PAGESIZE, 0) == 0
        return reused_buffers.Lease(reused_buffers._Buffer(size, end - size, memory), deque())

    reused_buffers.Pool.take = take


if __name__ == "__main__":
    warnings.simplefilter("error")
    guard_memory()
    play(damaged, read_by_both, damaged(0)[1])
