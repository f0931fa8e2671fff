"""The first bytes of compressed pages, and lengths from levels that may be damaged."""

import cramjam
import numpy as np
import pytest
import zstandard

from fsdata.decode.pages.front import IN_PARTS, unpack_front
from fsdata.kernels import pages
from fsdata.kernels.pages import row_lengths

PACK = {
    "SNAPPY": cramjam.snappy.compress_raw,
    "LZ4": lambda data: cramjam.lz4.compress_block(data, store_size=False),
    "GZIP": cramjam.gzip.compress,
    "ZSTD": zstandard.ZstdCompressor().compress,
}


def inputs() -> list[bytes]:
    """Runs, repetitions near and far, text that hardly repeats."""
    rng = np.random.default_rng(0)
    far = rng.bytes(70_000)
    return [
        b"a", bytes(100_000), b"abc" * 3000, rng.bytes(5000), far + far[:9000] + far,
        bytes(rng.integers(0, 3, 200_000).astype(np.uint8)), rng.bytes(59) + b"x" * 70 + rng.bytes(300),
    ]  # fmt: skip


def unpacked(data: bytes, codec: str, count: int) -> bytes:
    target = np.full(count, 0xAA, np.uint8)
    unpack_front(np.frombuffer(data, np.uint8), codec, target)
    return target.tobytes()


@pytest.mark.parametrize("codec", PACK)
@pytest.mark.parametrize("raw", inputs(), ids=lambda raw: str(len(raw)))
def test_the_first_bytes_are_those_of_the_whole(codec, raw):
    packed = bytes(PACK[codec](raw))
    for count in {1, 3, 61, 4096, len(raw) // 2, len(raw) - 1} if codec in IN_PARTS else set():
        if 0 < count < len(raw):
            assert unpacked(packed, codec, count) == raw[:count]
    assert unpacked(packed, codec, len(raw)) == raw


@pytest.mark.parametrize("codec", PACK)
def test_damage_is_an_error_or_other_bytes(codec):
    rng, raw, told = np.random.default_rng(1), bytes(range(250)) * 20, 0
    packed = bytes(PACK[codec](raw))
    for number in range(400):
        changed = bytearray(packed[: int(rng.integers(0, len(packed)))] if number % 2 else packed)
        for at in rng.integers(0, max(len(changed), 1), int(rng.integers(0, 4))).tolist():
            changed[at : at + 1] = rng.bytes(1)
        try:
            assert len(unpacked(bytes(changed), codec, len(raw))) == len(raw)
        except ValueError:
            told += 1
    assert told >= 200


def lengths(repetition: bytes, definition: bytes, top: int = 3, empty: int = 1, rows: int = 4):
    raw = np.frombuffer(repetition + definition, np.uint8)
    bounds = np.array([0, len(repetition), len(repetition), len(raw)])
    found, known = np.zeros(rows, np.int64), np.zeros(3, np.int64)
    code = row_lengths.add_lengths(raw, bounds, 4, top, empty, found, known)
    return code, found.tolist(), known.tolist()


def test_null_lists_empty_lists_and_null_elements():
    # Two bits each, four of them: null, empty, null element, element.
    assert lengths(bytes([8, 0]), bytes([3, 0b11100100, 0])) == (pages.OK, [0, 0, 1, 1], [4, 1, 1])
    assert lengths(bytes([2, 0, 6, 1]), bytes([8, 2])) == (pages.OK, [4, 0, 0, 0], [1, 0, 4])
    # Three bits each, across bytes: 5, 0, 4, 2.
    bits = np.array([5, 0, 4, 2, 0, 0, 0, 0])
    packed = sum(int(bit) << (3 * n) for n, bit in enumerate(bits)).to_bytes(3, "little")
    assert lengths(bytes([8, 0]), bytes([3]) + packed, top=5, empty=2) == (pages.OK, [1, 0, 1, 0], [4, 1, 1])


@pytest.mark.parametrize(
    ("repetition", "definition"),
    [
        (bytes([8, 1]), bytes([8, 3])),  # the first row goes on
        (bytes([8, 0]), bytes([6, 3])),
        (bytes([8, 0]), bytes([8, 4])),
        (bytes([8, 2]), bytes([8, 3])),
        (bytes([2, 0, 6, 1]), bytes([2, 1, 6, 3])),  # a list of nothing goes on
        (bytes([2, 0, 6, 1]), bytes([2, 3, 6, 1])),
        (bytes([8, 0]), bytes([3, 0xFF])),  # a byte is missing
        (b"\xff" * 9 + b"\x01", bytes([8, 3])),
        (bytes([8]), bytes([8, 3])),
        (b"", b""),
    ],
)
def test_levels_that_cannot_be(repetition, definition):
    assert lengths(repetition, definition)[0] == pages.DAMAGED


def test_a_level_of_packed_ones_above_the_top():
    assert lengths(bytes([8, 0]), bytes([3, 0xFF, 0xFF]), top=2)[0] == pages.DAMAGED


def test_more_rows_than_the_footer_says():
    assert lengths(bytes([8, 0]), bytes([8, 3]), rows=3)[0] == pages.DAMAGED
