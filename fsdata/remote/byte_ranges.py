"""Plans the requests for the bytes of a row group: numbers in, numbers out.

A byte range is (first byte, first byte after it). A request to a store takes as long as a megabyte, so one request
reads column chunks with a small gap between them, gap included. Long byte ranges are divided, because several
connections are faster than one.
"""

import itertools
from collections.abc import Iterable, Sequence

ByteRange = tuple[int, int]

GAP_BYTES = 1 << 20
REQUEST_BYTES = 8 << 20


def requests(ranges: Iterable[ByteRange], *, gap: int = GAP_BYTES, most: int = REQUEST_BYTES) -> list[ByteRange]:
    """Ascending, disjoint ranges that cover `ranges`. Gaps of up to `gap` bytes are included; a range of more than
    `most` bytes is divided into equal ranges of at most this size."""
    joined: list[ByteRange] = []
    for begin, end in sorted(byte_range for byte_range in ranges if byte_range[1] > byte_range[0]):
        if joined and begin - joined[-1][1] <= gap:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return [request for begin, end in joined for request in _divided(begin, end, most)]


def _divided(begin: int, end: int, most: int) -> Sequence[ByteRange]:
    count = -(-(end - begin) // most)
    bounds = [begin + (end - begin) * number // count for number in range(count + 1)]
    return list(itertools.pairwise(bounds))
