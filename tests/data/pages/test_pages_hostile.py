"""What pages can say to make a decoder read beyond them, run forever or take all memory."""

import compact_thrift as thrift
import numpy as np
import pytest

from freescale_tools.scan import level_kernels
from fsdata.kernels import runs
from fsdata.kernels.thrift import varint
from fsdata.pages import kernels as pages
from fsdata.pages.kernels import deltas, headers, indices, levels

OK, DAMAGED, UNKNOWN = pages.OK, pages.DAMAGED, pages.UNKNOWN
DATA, DICTIONARY, V2 = headers.DATA, headers.DICTIONARY, headers.DATA_V2
ENDLESS = b"\xff" * 9 + b"\x01"


def longer(number: int, size: int) -> bytes:
    """A number in so many bytes: Arrow takes five for one of 32 bits."""
    return bytes([number & 127 | 128, *[128] * (size - 2), number >> 7])


def header(kind: int = DATA, size: int = 0, without: int = 0, **fields: int) -> thrift.Struct:
    """Of a page of four PLAIN values; fields: f1, f2, ... of its kind."""
    kinds = {DATA: [4, 0, 3, 3], DICTIONARY: [4, 0], V2: [4, 0, 4, 0, 0, 0]}
    inner, outer = thrift.Struct(), thrift.Struct()
    for number, value in enumerate(kinds[kind], 1):
        if number != without:
            inner.put(number, thrift.I32, fields.get(f"f{number}", value))
    for number, value in enumerate((kind, size, size), 1):
        outer.put(number, thrift.I32, value)
    outer.put(kind + 5, thrift.STRUCT, inner)
    return outer


def of_two_kinds() -> thrift.Struct:
    struct = header()
    struct.put(7, thrift.STRUCT, thrift.Struct())
    return struct


@pytest.mark.parametrize(
    ("structs", "code"),
    [
        ([header()], OK),
        ([header(DICTIONARY), header(V2, 9, f5=4, f6=5)], OK),
        # Levels longer than their page.
        ([header(V2, 9, f5=1 << 62, f6=1 << 62)], DAMAGED),
        ([header(V2, 9, f5=(1 << 63) - 1, f6=1)], DAMAGED),
        ([header(V2, 9, f5=-1, f6=3)], DAMAGED),
        ([header(V2, 9, f5=5, f6=5)], DAMAGED),
        # Pages that contradict the footer, which says four values, or each other.
        *(([header(f1=count)], DAMAGED) for count in (5, -1, 3)),
        ([header(f1=2), header(DICTIONARY), header(f1=2)], DAMAGED),
        ([header(DICTIONARY), header(DICTIONARY), header()], DAMAGED),
        ([header(DICTIONARY, f1=-1), header()], DAMAGED),
        ([header(V2, f3=-1)], DAMAGED),
        # All are together larger than the footer says.
        ([header(size=500, f1=2), header(size=500, f1=2)], OK),
        ([header(size=500, f1=2), header(size=501, f1=2)], UNKNOWN),
        ([header(), header()], UNKNOWN),
        *(([header(without=field)], DAMAGED) for field in (1, 2, 3, 4)),
        ([of_two_kinds()], UNKNOWN),
    ],
)
def test_headers(structs, code):
    raw = b"".join(thrift.write_struct(each) + bytes(each[2]) for each in structs)
    assert headers.read_headers(np.frombuffer(raw, np.uint8), 4, 1000)[1] == code
    if code == OK:  # bytes after all values
        assert headers.read_headers(np.frombuffer(raw + b"\0", np.uint8), 4, 1000)[1] == UNKNOWN


@pytest.mark.parametrize("kind", [0, 11, 13, 15])
def test_a_long_list_of_no_kind_is_not_counted_to_its_end(kind):
    raw = np.frombuffer(bytes([0xF9, 0xF0 | kind, *[0xFF] * 8, 0x7F]) + bytes(20), np.uint8)
    assert headers.read_headers(raw, 4, 1000)[1] == DAMAGED


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xff" * 9, b"\x80" * 10 + b"\1"])
def test_a_number_without_an_end_lies_beyond_the_bytes(raw):
    assert varint(np.frombuffer(raw + b"", np.uint8), 0) == (0, len(raw) + 1)


def positions(raw: bytes, count: int, size: int) -> int:
    page = np.frombuffer(raw, np.uint8).copy()
    table, tail = np.empty((2 * count + 2, runs.COLUMNS), np.int64), np.empty(indices.TAIL + 8, np.uint8)
    return indices.index_positions(page, 0, len(page), page.ctypes.data, count, size, tail, table, 0)[0]


@pytest.mark.parametrize(
    ("raw", "size", "code"),
    [
        (bytes([3, 3, 0, 0, 0]), 1, OK),
        (bytes([3, 3, 1, 0, 0]), 1, DAMAGED),  # outside the dictionary
        (bytes([3, 16, 5]), 5, DAMAGED),
        (bytes([0, 16]), 0, DAMAGED),
        (bytes([32, 16, 255, 255, 255, 255]), 7, DAMAGED),
        (bytes([33, 3]) + bytes(33), 7, DAMAGED),
        (bytes([3, 14, 0]), 1, DAMAGED),  # seven of eight
        (bytes([3, 3]), 1, DAMAGED),
        (bytes([24, 3, *[0] * 8]), 1, UNKNOWN),  # a run that is cut
        (bytes([3, 5, 0, 0, 0, 0]), 1, UNKNOWN),  # eight are there; the rest of the group is cut
        (b"\x03" + ENDLESS, 1, DAMAGED),
        (b"\x03" + longer(16, 5) + b"\x00", 1, OK),
        (b"\x03" + longer(16, 6) + b"\x00", 1, DAMAGED),
        (b"\x03\x90\x80\x80\x80\x10\x00", 1, DAMAGED),  # 33 bits
        (b"\x03" + b"\xfe" * 9 + b"\x00", 1, DAMAGED),
    ],
)
def test_positions_in_a_dictionary(raw, size, code):
    assert positions(raw, 8, size) == code


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 13, 28, 29, 31, 32])
def test_one_position_outside_the_dictionary_is_seen_wherever_it_stands(width):
    count, most = 120, 2**width - 1  # fifteen groups of eight, the last in the copied end of the page
    for size in {1, most // 3 + 1, most}:
        around = np.random.default_rng(width).integers(0, size, count)
        around[::7] = size - 1
        for place in [None, *range(count)]:
            values = around.copy()
            if place is not None:
                values[place] = size if place % 2 else most
            bits = (values[:, None] >> np.arange(width) & 1).astype(np.uint8)
            raw = bytes([width, (count // 8) << 1 | 1]) + np.packbits(bits, bitorder="little").tobytes()
            assert positions(raw, count, size) == (OK if place is None else DAMAGED)


@pytest.mark.parametrize(
    ("numbers", "body", "code"),
    [
        ((128, 4, 2, 0, 0), bytes(4), OK),
        ((128, 4, 2, 0, 0), bytes(3), DAMAGED),
        ((128, 4, 2, 0, 0), bytes([8, 0, 0, 0]) + bytes(31), DAMAGED),
        ((128, 4, 2, 0, 0), bytes([8, 0, 0, 0]) + bytes(32), OK),
        ((128, 4, 2, 0, 0), bytes([33, 0, 0, 0]) + bytes(400), DAMAGED),
        ((128, 4, 2, 1 << 32, 0), bytes(4), DAMAGED),
        ((128, 4, 2, 0, 1 << 40), bytes(4), DAMAGED),
        ((128, 4, 3, 0, 0), bytes(4), UNKNOWN),
        ((128, 4, 1 << 40, 0, 0), bytes(4), DAMAGED),
        ((0, 4, 2, 0, 0), bytes(4), DAMAGED),
        ((128, 0, 2, 0, 0), bytes(4), DAMAGED),
        ((128, 3, 2, 0, 0), bytes(4), DAMAGED),
        (((1 << 64) - 128, 4, 2, 0, 0), bytes(4), DAMAGED),
    ],
)
def test_deltas(numbers, body, code):
    raw = np.frombuffer(b"".join(map(thrift.varint, numbers)) + body, np.uint8)
    assert deltas.read_deltas(raw, 0, len(raw), True, np.empty(2, np.int64)) == code


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize(("size", "narrow", "code"), [(5, True, OK), (6, True, DAMAGED), (6, False, OK)])
def test_long_numbers_of_deltas(place, size, narrow, code):
    """The first three have 32 bits; a first value and a least delta of int64 have 64."""
    said = [longer(number, size if at == place else 2) for at, number in enumerate((128, 4, 2, 0, 0))]
    raw = np.frombuffer(b"".join(said) + bytes(4), np.uint8)
    if place < 3 and size > 5:
        code = DAMAGED
    assert deltas.read_deltas(raw, 0, len(raw), narrow, np.empty(2, np.int64)) == code


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("last", "code"), [(1, OK), (2, DAMAGED), (5, DAMAGED)])
def test_numbers_of_deltas_have_64_bits_at_most(place, last, code):
    numbers = [b"\x00", b"\x00"]
    numbers[place] = bytes([128] * 9 + [last])
    raw = np.frombuffer(bytes([128, 1, 4, 2]) + b"".join(numbers) + bytes(4), np.uint8)
    assert deltas.read_deltas(raw, 0, len(raw), False, np.empty(2, np.int64)) == code


def of_loader(raw, bounds, rows, known):
    return levels.read_levels(raw, bounds, 4, 2, 1, rows, known, np.empty(1, np.int64))[0]


def of_commands(raw, bounds, rows, known):
    return level_kernels.add_lengths(raw, bounds, 4, 2, 1, rows, known)


@pytest.mark.parametrize("read", [of_loader, of_commands])
@pytest.mark.parametrize(
    ("repetition", "definition", "code"),
    [
        (bytes([8, 0]), bytes([8, 2]), OK),  # four rows of one value
        (bytes([2, 0, 6, 1]), bytes([8, 2]), OK),
        (bytes([8, 1]), bytes([8, 2]), DAMAGED),  # the first row goes on
        (bytes([8, 0]), bytes([6, 2]), DAMAGED),
        (bytes([8, 0]), bytes([8, 3]), DAMAGED),
        (bytes([8, 2]), bytes([8, 2]), DAMAGED),
        (bytes([2, 0, 6, 1]), bytes([2, 1, 6, 2]), DAMAGED),  # a list of nothing goes on
        (bytes([2, 0, 6, 1]), bytes([2, 2, 6, 1]), DAMAGED),
        (bytes([8, 0]), bytes([3, 0xFF, 0xFF]), DAMAGED),
        (bytes([8, 0]), bytes([3, 0xAA]), DAMAGED),  # a byte is missing
        (ENDLESS, bytes([8, 2]), DAMAGED),
        (longer(8, 5) + b"\x00", bytes([8, 2]), OK),
        (longer(8, 6) + b"\x00", bytes([8, 2]), DAMAGED),
        (bytes([8, 0]), longer(8, 6) + b"\x02", DAMAGED),
        (bytes([8]), bytes([8, 2]), DAMAGED),
        (b"", b"", DAMAGED),
    ],
)
def test_levels(read, repetition, definition, code):
    raw = np.frombuffer(repetition + definition, np.uint8)
    bounds = np.array([0, len(repetition), len(repetition), len(raw)])
    assert read(raw, bounds, np.zeros(4, np.int64), np.zeros(3, np.int64)) == code
    if code == OK and repetition == bytes([8, 0]):  # more rows than the footer says
        assert read(raw, bounds, np.zeros(3, np.int64), np.zeros(3, np.int64)) == DAMAGED


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (bytes([3, 0xFF]), OK),
        (bytes([16, 1]), OK),
        (bytes([5, 0xFF]), UNKNOWN),  # a run that is cut
        (bytes([16, 2]), DAMAGED),
        (bytes([14, 1]), DAMAGED),
        (ENDLESS + b"\x01", DAMAGED),
        (longer(16, 5) + b"\x01", OK),
        (longer(16, 6) + b"\x01", DAMAGED),
        (b"", DAMAGED),
    ],
)
def test_booleans_in_runs(raw, code):
    page = np.frombuffer(raw, np.uint8)
    assert deltas.read_bit_runs(page, 0, len(page), np.empty(8, np.int64)) == code
