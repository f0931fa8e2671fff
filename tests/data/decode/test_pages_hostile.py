"""What pages can say to make a decoder read beyond them, run forever or take all memory."""

import compact_thrift as thrift
import numpy as np
import pytest

from fsdata.kernels import pages
from fsdata.kernels.pages import deltas, headers, levels, runs
from fsdata.kernels.thrift import varint


def header(kind: int = headers.DATA, size: int = 0, **fields: int) -> thrift.Struct:
    """Of a page of four PLAIN values; fields: f1, f2, ... of its kind."""
    kinds = {headers.DATA: [4, 0, 3, 3], headers.DICTIONARY: [4, 0], headers.DATA_V2: [4, 0, 4, 0, 0, 0]}
    inner, outer = thrift.Struct(), thrift.Struct()
    for number, value in enumerate(kinds[kind], 1):
        inner.put(number, thrift.I32, fields.get(f"f{number}", value))
    for number, value in enumerate((kind, size, size), 1):
        outer.put(number, thrift.I32, value)
    outer.put(kind + 5, thrift.STRUCT, inner)
    return outer


def read(*structs: thrift.Struct, values: int = 4, unpacked: int = 1000, after: bytes = b"") -> int:
    raw = b"".join(thrift.write_struct(each) + bytes(each[2]) for each in structs) + after
    return headers.read_headers(np.frombuffer(raw, np.uint8), values, unpacked)[1]


def test_headers_that_are_right():
    assert read(header()) == pages.OK
    assert read(header(headers.DICTIONARY), header(headers.DATA_V2, 9, f5=4, f6=5)) == pages.OK


@pytest.mark.parametrize(
    "lengths", [{"f5": 1 << 62, "f6": 1 << 62}, {"f5": (1 << 63) - 1, "f6": 1}, {"f5": -1, "f6": 3}, {"f5": 5, "f6": 5}]
)
def test_levels_longer_than_their_page(lengths):
    assert read(header(headers.DATA_V2, 9, **lengths)) == pages.DAMAGED


@pytest.mark.parametrize(
    "structs",
    [
        [header(f1=5)],
        [header(f1=-1)],
        [header(f1=3)],
        [header(f1=2), header(headers.DICTIONARY), header(f1=2)],
        [header(headers.DICTIONARY), header(headers.DICTIONARY), header()],
        [header(headers.DICTIONARY, f1=-1), header()],
        [header(headers.DATA_V2, f3=-1)],
    ],
)
def test_pages_that_contradict_the_footer_or_each_other(structs):
    assert read(*structs) == pages.DAMAGED


def test_pages_that_are_larger_together_than_the_footer_says():
    assert read(header(size=500, f1=2), header(size=500, f1=2)) == pages.OK
    assert read(header(size=500, f1=2), header(size=501, f1=2)) == pages.UNKNOWN


def test_bytes_after_all_values():
    assert read(header(), after=b"\0") == pages.UNKNOWN
    assert read(header(), header()) == pages.UNKNOWN


@pytest.mark.parametrize("field", [1, 2, 3, 4])
def test_a_header_without_a_field_that_it_must_have(field):
    struct = header()
    del struct[5][field]
    assert read(struct) == pages.DAMAGED


def test_a_page_of_two_kinds():
    struct = header()
    struct.put(7, thrift.STRUCT, thrift.Struct())
    assert read(struct) == pages.UNKNOWN


@pytest.mark.parametrize("kind", [0, 11, 13, 15])
def test_a_long_list_of_no_kind_is_not_counted_to_its_end(kind):
    raw = np.frombuffer(bytes([0xF9, 0xF0 | kind, *[0xFF] * 8, 0x7F]) + bytes(20), np.uint8)
    assert headers.read_headers(raw, 4, 1000)[1] == pages.DAMAGED


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xff" * 9, b"\x80" * 10 + b"\1"])
def test_a_number_without_an_end_lies_beyond_the_bytes(raw):
    array = np.frombuffer(raw + b"", np.uint8)
    assert varint(array, 0) == (0, len(raw) + 1)


def positions(raw: bytes, count: int, size: int) -> int:
    page = np.frombuffer(raw, np.uint8).copy()
    table, tail = np.empty((2 * count + 2, runs.COLUMNS), np.int64), np.empty(runs.TAIL + 8, np.uint8)
    return runs.index_positions(page, 0, len(page), page.ctypes.data, count, size, tail, table, 0)[0]


@pytest.mark.parametrize(
    ("raw", "size", "code"),
    [
        (bytes([3, 3, 0, 0, 0]), 1, pages.OK),
        (bytes([3, 3, 1, 0, 0]), 1, pages.DAMAGED),  # outside the dictionary
        (bytes([3, 16, 5]), 5, pages.DAMAGED),
        (bytes([0, 16]), 0, pages.DAMAGED),
        (bytes([32, 16, 255, 255, 255, 255]), 7, pages.DAMAGED),
        (bytes([33, 3]) + bytes(33), 7, pages.DAMAGED),
        (bytes([3, 14, 0]), 1, pages.DAMAGED),  # seven of eight
        (bytes([3, 3]), 1, pages.DAMAGED),
        (bytes([24, 3, *[0] * 8]), 1, pages.UNKNOWN),  # a run that is cut
        (bytes([3, 5, 0, 0, 0, 0]), 1, pages.UNKNOWN),  # eight are there; the rest of the group is cut
        (b"\x03" + b"\xff" * 9 + b"\x01", 1, pages.DAMAGED),
        (b"\x03" + b"\xfe" * 9 + b"\x00", 1, pages.DAMAGED),
    ],
)
def test_positions_in_a_dictionary(raw, size, code):
    assert positions(raw, 8, size) == code


@pytest.mark.parametrize("width", range(1, 33))
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
            assert positions(raw, count, size) == (pages.OK if place is None else pages.DAMAGED)


def of_deltas(*numbers: int, body: bytes = b"", narrow: bool = False, count: int = 2) -> int:
    raw = np.frombuffer(b"".join(thrift._varint(number) for number in numbers) + body, np.uint8)
    return deltas.read_deltas(raw, 0, len(raw), narrow, np.empty(count, np.int64))


@pytest.mark.parametrize(
    ("numbers", "body", "code"),
    [
        ((128, 4, 2, 0, 0), bytes(4), pages.OK),
        ((128, 4, 2, 0, 0), bytes(3), pages.DAMAGED),
        ((128, 4, 2, 0, 0), bytes([8, 0, 0, 0]) + bytes(31), pages.DAMAGED),
        ((128, 4, 2, 0, 0), bytes([8, 0, 0, 0]) + bytes(32), pages.OK),
        ((128, 4, 2, 0, 0), bytes([33, 0, 0, 0]) + bytes(400), pages.DAMAGED),
        ((128, 4, 2, 1 << 32, 0), bytes(4), pages.DAMAGED),
        ((128, 4, 2, 0, 1 << 40), bytes(4), pages.DAMAGED),
        ((128, 4, 3, 0, 0), bytes(4), pages.UNKNOWN),
        ((128, 4, 1 << 40, 0, 0), bytes(4), pages.UNKNOWN),
        ((0, 4, 2, 0, 0), bytes(4), pages.DAMAGED),
        ((128, 0, 2, 0, 0), bytes(4), pages.DAMAGED),
        ((128, 3, 2, 0, 0), bytes(4), pages.DAMAGED),
        (((1 << 64) - 128, 4, 2, 0, 0), bytes(4), pages.DAMAGED),
    ],
)
def test_deltas(numbers, body, code):
    assert of_deltas(*numbers, body=body, narrow=True) == code


@pytest.mark.parametrize(
    ("repetition", "definition", "code"),
    [
        (bytes([8, 0]), bytes([8, 2]), pages.OK),  # four rows of one value
        (bytes([2, 0, 6, 1]), bytes([8, 2]), pages.OK),
        (bytes([8, 1]), bytes([8, 2]), pages.DAMAGED),  # the first row goes on
        (bytes([8, 0]), bytes([6, 2]), pages.DAMAGED),
        (bytes([8, 0]), bytes([8, 3]), pages.DAMAGED),
        (bytes([8, 2]), bytes([8, 2]), pages.DAMAGED),
        (bytes([2, 0, 6, 1]), bytes([2, 1, 6, 2]), pages.DAMAGED),  # a list of nothing goes on
        (bytes([8, 0]), bytes([3, 0xFF, 0xFF]), pages.DAMAGED),
        (bytes([8, 0]), bytes([3, 0xAA]), pages.DAMAGED),  # a byte is missing
        (b"\xff" * 9 + b"\x01", bytes([8, 2]), pages.DAMAGED),
        (bytes([8]), bytes([8, 2]), pages.DAMAGED),
    ],
)
def test_levels(repetition, definition, code):
    raw = np.frombuffer(repetition + definition, np.uint8)
    bounds = np.array([0, len(repetition), len(repetition), len(raw)])
    length, known = np.zeros(4, np.int64), np.zeros(2, np.int64)
    assert levels.read_levels(raw, bounds, 4, True, 2, 1, length, known) == code


def test_more_rows_than_the_footer_says():
    raw = np.frombuffer(bytes([8, 0, 8, 2]), np.uint8)
    length, known = np.zeros(3, np.int64), np.zeros(2, np.int64)
    assert levels.read_levels(raw, np.array([0, 2, 2, 4]), 4, True, 2, 1, length, known) == pages.DAMAGED


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (bytes([3, 0xFF]), pages.OK),
        (bytes([16, 1]), pages.OK),
        (bytes([5, 0xFF]), pages.UNKNOWN),  # a run that is cut
        (bytes([16, 2]), pages.DAMAGED),
        (bytes([14, 1]), pages.DAMAGED),
        (b"\xff" * 9 + b"\x01\x01", pages.DAMAGED),
        (b"", pages.DAMAGED),
    ],
)
def test_booleans_in_runs(raw, code):
    page = np.frombuffer(raw, np.uint8)
    assert deltas.read_bit_runs(page, 0, len(page), np.empty(8, np.int64)) == code
