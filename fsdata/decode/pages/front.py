"""The first bytes of a page: levels stand before values, so that most of a page need not be unpacked."""

import threading
import zlib
from collections.abc import Callable

import numpy as np
import zstandard

from fsdata.kernels.pages import front

_own = threading.local()
_WITH_HEADER = 47  # zlib looks for the header of gzip or its own


def _zstd(data: np.ndarray, target: np.ndarray, _: int) -> int:
    if not hasattr(_own, "zstd"):
        _own.zstd = zstandard.ZstdDecompressor()
    with _own.zstd.stream_reader(data.data) as reader:
        return reader.readinto(target.data)


def _gzip(data: np.ndarray, target: np.ndarray, _: int) -> int:
    done, rest = 0, data.tobytes()
    while rest and done < len(target):
        member = zlib.decompressobj(_WITH_HEADER)
        found = member.decompress(rest, len(target) - done)
        target[done : done + len(found)] = np.frombuffer(found, np.uint8)
        done, rest = done + len(found), member.unused_data
    return done


def _lz4(data: np.ndarray, target: np.ndarray, _: int) -> int:
    return front.lz4_front(data, target)


_UNPACK: dict[str, Callable[[np.ndarray, np.ndarray, int], int]] = {
    "ZSTD": _zstd,
    "SNAPPY": front.snappy_front,
    "GZIP": _gzip,
    "LZ4": _lz4,
}


def unpack_front(data: np.ndarray, codec: str, size: int, target: np.ndarray) -> None:
    """Fill `target`, uint8 [at least 1], with the first of the `size` bytes that `data` becomes.

    Raises:
        ValueError: `data` is not what the codec makes, as far as it was looked at.
    """
    try:
        found = _UNPACK[codec](data, target, size)
    except (zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"{codec}: {error}") from error
    if found != len(target):
        raise ValueError(f"{codec}: it ends, or is damaged, before its first {len(target)} bytes are unpacked")
