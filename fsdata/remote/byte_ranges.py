"""Which bytes of a row group are read, and by which requests: numbers in, numbers out.

A byte range is (first byte, first byte after it). A request to a store costs as much time as a megabyte, so column
chunks with a small gap between them are read at once, gap included. Long byte ranges are cut, because several
connections are faster than one.
"""

import itertools
from collections.abc import Iterable, Sequence

ByteRange = tuple[int, int]

GAP_BYTES = 1 << 20
REQUEST_BYTES = 8 << 20


def requests(ranges: Iterable[ByteRange], *, gap: int = GAP_BYTES, most: int = REQUEST_BYTES) -> list[ByteRange]:
    """Ascending, disjoint ranges that cover `ranges`: gaps of up to `gap` bytes are closed, and what is longer than
    `most` is cut into equal parts of at most that size."""
    joined: list[ByteRange] = []
    for begin, end in sorted(each for each in ranges if each[1] > each[0]):
        if joined and begin - joined[-1][1] <= gap:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return [part for whole in joined for part in _cut(*whole, most)]


def _cut(begin: int, end: int, most: int) -> Sequence[ByteRange]:
    parts = -(-(end - begin) // most)
    at = [begin + (end - begin) * part // parts for part in range(parts + 1)]
    return list(itertools.pairwise(at))
