"""Plans parts of a table that fit into memory one at a time.

Pure planning. The table is in order of (bucket, key). A part is a consecutive piece of it: whole buckets, or a
range of the keys of one bucket. Parts can therefore be made one after the other and appended. All events of a
key are in one part, so a part can be larger than planned only by its longest histories.
"""

from dataclasses import dataclass

import numpy as np

from freescale_tools.write.histories.parts.keys import buckets_of

PART_BYTES = 64 << 20
"""Decoded bytes of the events of a part. Making one takes about six times as much memory."""

MOST_PARTS = 400
"""More events than fit into so many parts make larger parts: every part is an open file while events are split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Which part an event belongs to.

    Attributes:
        buckets: of the table.
        groups: consecutive buckets are joined to so many groups; at most `buckets`.
        bounds: ascending keys [R - 1]. A group has R parts: range r of its keys begins with bounds[r - 1]. Empty
            if `groups` is less than `buckets`.
    """

    buckets: int
    groups: int
    bounds: np.ndarray

    @property
    def ranges(self) -> int:
        return len(self.bounds) + 1

    @property
    def count(self) -> int:
        return self.groups * self.ranges

    @property
    def mixed(self) -> bool:
        """Whether a part may have several buckets."""
        return self.groups < self.buckets

    def of(self, keys: np.ndarray) -> np.ndarray:
        """uint16[N], the part of every key."""
        part = np.zeros(len(keys), np.uint16)
        if self.groups > 1:
            bucket = buckets_of(keys, self.buckets)
            part += (bucket.astype(np.uint64) * np.uint64(self.groups) // np.uint64(self.buckets)).astype(np.uint16)
        if self.ranges > 1:
            part = part * np.uint16(self.ranges) + np.searchsorted(self.bounds, keys, side="right").astype(np.uint16)
        return part


def parts_wanted(events: int, event_bytes: float, part_bytes: int = PART_BYTES) -> int:
    """How many parts so many events make."""
    return min(max(-(-int(events * event_bytes) // part_bytes), 1), MOST_PARTS)


def ranges_wanted(wanted: int, buckets: int) -> int:
    """Into how many ranges the keys of every bucket have to be cut to have `wanted` parts."""
    return -(-wanted // buckets)


def plan_parts(wanted: int, buckets: int, sample: np.ndarray) -> Parts:
    """The parts of a table; fewer than wanted if there are few keys.

    sample: the keys of some events, drawn evenly. Needed only if `ranges_wanted` is above 1.
    """
    ranges = ranges_wanted(wanted, buckets)
    ordered = np.sort(sample)
    places = np.arange(1, ranges) * len(ordered) // ranges
    bounds = np.unique(ordered[places]) if len(ordered) else ordered[:0]
    return Parts(buckets=buckets, groups=min(buckets, wanted), bounds=bounds)
