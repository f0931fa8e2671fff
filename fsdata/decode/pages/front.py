"""The first bytes of a page: levels stand before values, so that most of a page need not be unpacked.

The libraries of Snappy and LZ4 unpack all or nothing.
"""

import threading
import zlib
from collections.abc import Callable

import cramjam
import numpy as np
import zstandard

IN_PARTS = frozenset({"ZSTD", "GZIP"})
_own = threading.local()
_WITH_HEADER = 47  # zlib looks for the header of gzip or its own


def _zstd(data: memoryview, target: memoryview) -> int:
    if not hasattr(_own, "zstd"):
        _own.zstd = zstandard.ZstdDecompressor()
    with _own.zstd.stream_reader(data) as reader:
        return reader.readinto(target)


def _gzip(data: memoryview, target: memoryview) -> int:
    done, rest = 0, data.tobytes()
    while rest and done < len(target):
        member = zlib.decompressobj(_WITH_HEADER)
        found = member.decompress(rest, len(target) - done)
        target[done : done + len(found)] = found
        done, rest = done + len(found), member.unused_data
    return done


_UNPACK: dict[str, Callable[[memoryview, memoryview], int]] = {
    "ZSTD": _zstd,
    "SNAPPY": cramjam.snappy.decompress_raw_into,
    "GZIP": _gzip,
    "LZ4": cramjam.lz4.decompress_block_into,
}


def unpack_front(data: np.ndarray, codec: str, target: np.ndarray) -> None:
    """Fill `target`, uint8 [at least 1], with the first bytes that `data` becomes; with all if not in `IN_PARTS`.

    Raises:
        ValueError: `data` is not what the codec makes, as far as it was looked at.
    """
    try:
        found = _UNPACK[codec](data.data, target.data)
    except (OSError, zlib.error, cramjam.DecompressionError, zstandard.ZstdError) as error:
        raise ValueError(f"{codec}: {error}") from error
    if found != len(target):
        raise ValueError(f"{codec}: {found} bytes where {len(target)} or more are said")
