"""Parquet files whose pages are damaged after decompression: every seed is one file and some damage.

`python damaged_pages.py FOLDER FIRST LAST` reads the files of these seeds by both decoders and prints one JSON line
before and one after each.
"""

import copy
import ctypes
import faulthandler
import io
import mmap
import random
import re
import sys
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
import pyarrow.parquet as pq
from compact_thrift import Struct
from damaged import ENDS, memory, say
from footers import footer_of, with_footer

CODECS = {0: "none", 1: "snappy", 2: "gzip", 6: "zstd", 7: "lz4"}  # by their number in a footer
DATA, DICTIONARY, DATA_V2 = 0, 2, 3
PLAIN, RLE, DELTAS, POSITIONS, SPLIT = 0, 3, 5, 8, 9
INTEGERS = (pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.uint32(), pa.uint16(), pa.uint8())
FLOATS = (pa.float32(), pa.float64())


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


def good_file(rng: random.Random) -> bytes:
    """Small, in one of the ways that files are written."""
    rows = rng.choice([1, 3, 20, 90, 300])
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    codec = rng.choice(["none", "none", "none", "snappy", "gzip", "zstd", "lz4"])
    columns = {
        "user": _flat(numbers, rng, rows, (*INTEGERS, pa.bool_())),
        "at": pa.array(numbers.integers(0, 1 << rng.choice([3, 20, 60]), rows)),
        "price": _flat(numbers, rng, rows, (*FLOATS, pa.int32(), pa.int64(), pa.uint32(), pa.bool_())),
        "items": _list(numbers, rng, rows, (*INTEGERS, pa.bool_())),
        "costs": _list(numbers, rng, rows, (*FLOATS, pa.int32(), pa.int64(), pa.uint32(), pa.bool_())),
    }
    encodings = {}
    for name in columns:
        kind = columns[name].type
        kind = kind.value_type if pa.types.is_list(kind) else kind
        path = f"{name}.list.element" if pa.types.is_list(columns[name].type) else name
        some = ["PLAIN", "", ""]
        if pa.types.is_integer(kind):
            some += ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
        elif pa.types.is_floating(kind):
            some.append("BYTE_STREAM_SPLIT")
        else:
            some = ["PLAIN", "RLE"]
        encodings[path] = rng.choice(some)
    sink = io.BytesIO()
    fields = [
        pa.field(name, array.type, bool(array.null_count) or rng.random() < 0.7) for name, array in columns.items()
    ]
    pq.write_table(
        pa.table(list(columns.values()), schema=pa.schema(fields)),
        sink,
        row_group_size=max(rows // rng.choice([1, 1, 2]), 1),
        compression=codec,
        use_dictionary=[path for path, encoding in encodings.items() if not encoding],
        column_encoding={path: encoding for path, encoding in encodings.items() if encoding},
        data_page_version=rng.choice(["1.0", "2.0"]),
        data_page_size=rng.choice([8, 100, 1 << 20]),  # at 1 there are pages of no values, where pyarrow stops reading
        dictionary_pagesize_limit=rng.choice([20, 1 << 20]),
        write_batch_size=rng.choice([1, 7, 64, 1024]),
        write_page_checksum=rng.random() < 0.3,
    )
    return sink.getvalue()


def damaged(seed: int) -> tuple[str, bool, bytes]:
    """(which damage, whether some pages have no values, the file)."""
    rng = random.Random(seed)
    raw = good_file(rng)
    footer = copy.deepcopy(footer_of(raw))
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


def _packed(data: bytes, codec: str) -> bytes:
    return pa.Codec("lz4_raw" if codec == "lz4" else codec).compress(data).to_pybytes()


def _written(raw: bytes, footer: Struct, chunks: list[Struct], content: list[list[Page]], check: str) -> bytes:
    """The file again, with other pages. check: checksums are kept as they were, made right, or left out."""
    out = bytearray(b"PAR1")
    for chunk, pages in zip(chunks, content, strict=True):
        begin, data, unpacked = len(out), None, 0
        for page in pages:
            at = len(out)
            codec, levels, body = CODECS[chunk[4]], page.levels, bytes(page.body)
            if codec != "none" and len(body) > levels and page.inner.get(7, True):
                body = body[:levels] + _packed(body[levels:], codec)
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
        chunk[6] = min(unpacked, chunk[7]) if CODECS[chunk[4]] == "none" else unpacked
        chunk[9] = begin if data is None else data
        if 11 in chunk:
            chunk[11] = begin
    for group in footer[4].values:
        group.pop(5, None)  # where it begins
    return with_footer(bytes(out) + raw[-8 - int.from_bytes(raw[-8:-4], "little") :], footer)


def bits(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    body = rng.choice(pages).body
    for _ in range(rng.choice([1, 1, 2, 8]) if body else 0):
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)


def first_bits(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """Of levels, widths and the heads of blocks."""
    body = rng.choice(pages).body
    if body:
        body[rng.randrange(min(len(body), 14))] ^= 1 << rng.randrange(8)


def stretch(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    body, size = rng.choice(pages).body, rng.choice([1, 2, 8, 64])
    begin = rng.randrange(len(body) + 1)
    body[begin : begin + size] = rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)])


def cut(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    body, size = rng.choice(pages).body, rng.choice([1, 2, 4, 9, 1000])
    begin = rng.choice([0, len(body) - size, rng.randrange(len(body) + 1)])
    del body[max(begin, 0) : begin + size]


def more(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    body = rng.choice(pages).body
    at = rng.choice([0, len(body), rng.randrange(len(body) + 1)])
    body[at:at] = rng.randbytes(rng.choice([1, 4, 64]))


def giant(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """A varint, of a run or of a block of deltas."""
    body = rng.choice(pages).body
    at = rng.choice([0, 1, 4, 5, 6, 8, rng.randrange(len(body) + 1)])
    number = max(rng.choice(ENDS) + rng.choice([-1, 0, 1]), 0) << 1 | rng.randrange(2)
    varint = b""
    while number > 127:
        varint += bytes([number & 127 | 128])
        number >>= 7
    varint = rng.choice([varint + bytes([number]), b"\xff" * rng.choice([5, 9, 10, 20]) + b"\1", b"\x80" * 9 + b"\1"])
    body[at : at + rng.choice([0, 1, len(varint)])] = varint


def runs(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """What follows the levels is positions, of any width and in any runs."""
    page = pages[-1] if rng.random() < 0.5 else rng.choice(pages)
    begin = rng.choice([0, page.levels, page.levels, 6, 8])
    made = bytearray([rng.choice([0, 1, 2, 3, 7, 8, 9, 16, 25, 31, 32, 33, 255])])
    for _ in range(rng.choice([1, 2, 10])):
        if rng.random() < 0.5:
            groups = rng.choice([0, 1, 2, 8, 63])
            made += bytes([groups << 1 | 1]) + rng.choice([bytes, rng.randbytes])(
                rng.choice([0, 1, groups, groups * 3])
            )
        else:
            made += bytes(
                [rng.randrange(64) << 1, *rng.choice([(0,), (1,), (0, 0), (0, 0, 0, 0), (255, 255, 255, 255)])]
            )
    page.body[begin:] = made
    _encoded(page, rng.choice([POSITIONS, POSITIONS, 2]))


def deltas(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """What follows the levels is deltas, in blocks of any size."""
    page = rng.choice(pages)
    begin = rng.choice([0, page.levels, page.levels, 6, 8])
    block, parts = rng.choice([(128, 4), (128, 4), (128, 1), (256, 2), (1 << 20, 4), (0, 0), (128, 0), (64, 2), (1, 1)])
    made = bytearray()
    for number in (block, parts, rng.choice([0, 1, 20, 300, 1 << 40]), rng.choice([0, 5, (1 << 64) - 1])):
        while number > 127:
            made.append(number & 127 | 128)
            number >>= 7
        made.append(number)
    for _ in range(rng.randrange(4)):
        widths = bytes(rng.choice([0, 1, 7, 31, 32, 33, 57, 58, 63, 64, 65, 255]) for _ in range(parts % 8))
        made += bytes([rng.choice([0, 1, 126])]) + widths
        made += rng.randbytes(rng.choice([0, 3, sum(widths) * 4, sum(widths) * 4]))
    page.body[begin:] = made
    _encoded(page, DELTAS)


def swapped(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    a, b = rng.randrange(len(pages)), rng.randrange(len(pages))
    pages[a], pages[b] = pages[b], pages[a]


def doubled(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    pages.insert(rng.randrange(len(pages) + 1), copy.deepcopy(rng.choice(pages)))


def missing(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    if len(pages) > 1:
        del pages[rng.randrange(len(pages))]


def empty(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    page = copy.deepcopy(rng.choice(pages))
    page.inner.put(1, thrift.I32, 0)
    if rng.random() < 0.5:
        page.body.clear()
    pages.insert(rng.randrange(len(pages) + 1), page)


def bodies(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    """Two pages have changed their bodies."""
    a, b = rng.choice(pages), rng.choice(pages)
    a.body, b.body = bytearray(b.body), bytearray(a.body)


def encoding(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    _encoded(rng.choice(pages), rng.choice([PLAIN, 2, RLE, 4, DELTAS, 6, 7, POSITIONS, SPLIT, 10, -1]))


def kind(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    page = rng.choice(pages)
    inner, page.header[1] = page.inner, rng.choice([0, 1, 2, 3, 4])
    if rng.random() < 0.7:
        page.header.put(page.header[1] + 5, thrift.STRUCT, inner)


def header_numbers(pages: list[Page], chunk: Struct, rng: random.Random) -> None:
    page = rng.choice(pages)
    page.sizes = False
    page.header[2], page.header[3] = len(page.body), len(page.body)
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
    page.header[2], page.header[3] = len(page.body), len(page.body)
    head = bytearray(thrift.write_struct(page.header))
    garbage = [
        b"\xf9\xf0\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xfc" * 80,
        b"\x19\x19\x19",
        b"\xf8\xff\xff\xff\xff\x0f",
    ]
    at = rng.randrange(len(head))
    for _ in range(rng.choice([1, 2])):
        if rng.random() < 0.5:
            head[at] = rng.randrange(256)
        else:
            head[at : at + rng.choice([0, 1, 5])] = rng.choice([*garbage, rng.randbytes(rng.choice([1, 3, 20]))])
        at = rng.randrange(len(head))
    page.head = bytes(head)


DAMAGES: tuple[Callable[[list[Page], Struct, random.Random], None], ...] = (
    bits, bits, first_bits, first_bits, stretch, cut, more, giant, runs, runs, deltas, swapped, doubled, missing, empty,
    bodies, encoding, kind, header_numbers, counts, values, heads,
)  # fmt: skip


def _encoded(page: Page, encoding: int) -> None:
    page.inner.put(4 if page.header.get(1) == DATA_V2 else 2, thrift.I32, encoding)


def _flat(numbers: np.random.Generator, rng: random.Random, rows: int, kinds: tuple[pa.DataType, ...]) -> pa.Array:
    array = _numbers(numbers, rng, rows, rng.choice(kinds))
    if rng.random() < 0.5:
        return array
    return pa.array([None if numbers.random() < 0.3 else one for one in array.to_pylist()], array.type)


def _list(numbers: np.random.Generator, rng: random.Random, rows: int, kinds: tuple[pa.DataType, ...]) -> pa.Array:
    lengths = numbers.integers(0, rng.choice([1, 3, 9, 100]) + 1, rows)
    if rng.random() < 0.2:
        lengths[:] = lengths[0]
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    elements = _numbers(numbers, rng, int(lengths.sum()), rng.choice(kinds))
    nulls = None if rng.random() < 0.5 else pa.array(numbers.random(rows) < 0.3)
    array = pa.ListArray.from_arrays(offsets, elements, mask=nulls)
    if rng.random() < 0.5:
        return array
    of = pa.list_(pa.field("element", array.type.value_type, rng.random() < 0.7))
    return pa.ListArray.from_arrays(offsets, elements, type=of, mask=nulls)


def _numbers(numbers: np.random.Generator, rng: random.Random, count: int, kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):
        return pa.array(numbers.integers(0, 1 << rng.choice([2, 30]), count) / 8, kind)
    most = rng.choice([2, 50, 1 << 62])
    least = 0
    if not pa.types.is_boolean(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        most, least = min(most, int(info.max)), max(-rng.choice([0, 7, 1 << 62]), int(info.min))
    found = numbers.integers(least, most, count)
    if rng.random() < 0.2:
        found = np.sort(found)
    return pa.array(found.astype(bool), kind) if pa.types.is_boolean(kind) else pa.array(found, kind)


def wrong_number(struct: Struct, rng: random.Random) -> None:
    _, holder, key = rng.choice(list(thrift.numbers(struct)))
    right = holder[key]
    wrong = rng.choice([right + 1, right - 1, -right, right * 1000, rng.choice(ENDS), -rng.choice(ENDS)])
    holder[key] = max(-(2**63), min(wrong, 2**63 - 1))


def read_with(path: Path, decoder: str) -> tuple[str, object]:
    """("rows", all of them), or the name of the error and what it says."""
    from parquet import opened, read_all

    from fsdata import ParquetSource, Schema, Sequence
    from fsdata.errors import FreeScaleError

    schema = Schema(
        sequences=(Sequence("ids", ("items",)), Sequence("numbers", floats=("costs",), max_length=50)),
        context=("user",),
        dense=("price",),
    )
    defaults = {"user": 1, "price": 2.0, "items": 3, "costs": 4.0}
    try:
        source, layout = opened(ParquetSource(path, defaults=defaults, decoder=decoder), schema)
        try:
            return "rows", read_all(source, layout)
        finally:
            source.close()
    except FreeScaleError as error:
        return type(error).__name__, str(error)


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


def fault(ours: tuple[str, object], arrows: tuple[str, object], some_empty: bool) -> str | None:
    """What is wrong with our answer, if something is.

    some_empty: pages without values, at which pyarrow stops reading lists; the loader then misses rows.
    """
    if ours[0] == "CorruptFileError" or ours == arrows or (ours[0] == arrows[0] == "DataError"):
        return None
    if some_empty and re.search("rows where the footer says|do not have the same size", str(arrows[1])):
        return None
    return f"pyarrow: {str(arrows)[:300]}; pages: {str(ours)[:300]}"


def main(folder: Path, first: int, last: int) -> None:
    """Read every file by both decoders."""
    faulthandler.enable()
    warnings.simplefilter("error")
    guard_memory()
    path = folder / "one.parquet"
    path.write_bytes(good_file(random.Random(0)))
    for decoder in ("pages", "pyarrow"):
        read_with(path, decoder)  # everything is imported and compiled now
    before = memory("VmRSS")
    for seed in range(first, last):
        damage, some_empty, raw = damaged(seed)
        path.write_bytes(raw)
        say(seed=seed, damage=damage)
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        faults, found = [], ("", "")
        try:
            found = read_with(path, "pages")
        except Exception:
            faults.append(traceback.format_exc())
        peak_mb = (memory("VmHWM") - before) / 1024
        arrows = read_with(path, "pyarrow")
        faults += filter(None, [fault(found, arrows, some_empty)] if not faults else [])
        if damage == "none" and found[0] != "rows":
            faults.append(f"not damaged, but {found}")
        say(
            seed=seed, damage=damage, bytes=len(raw), found=found[0], arrow=arrows[0], faults=faults,
            peak_mb=round(peak_mb, 1),
        )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
