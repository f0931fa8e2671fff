"""Exact histograms of lengths. They can be merged, and are small for any number of rows.

D distinct lengths need at least D^2 / 2 events. So 10^12 events have at most 1.4 million distinct lengths, 22 MB, and
the counts need not be estimated.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_COUNTED = 8  # up to so many bins per row, counting into bins is faster than sorting the rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthHistogram:
    """How many rows have each length.

    Attributes:
        lengths: int64[D], ascending, distinct, 0 or more.
        counts: int64[D], above 0.
    """

    lengths: np.ndarray
    counts: np.ndarray

    def __post_init__(self) -> None:
        lengths, counts = np.asarray(self.lengths, np.int64), np.asarray(self.counts, np.int64)
        if lengths.ndim != 1 or lengths.shape != counts.shape:
            raise ValueError(f"lengths {list(lengths.shape)} and counts {list(counts.shape)} must both be [D]")
        if lengths.size and (lengths[0] < 0 or (np.diff(lengths) <= 0).any() or counts.min() < 1):
            raise ValueError("lengths must be 0 or more and ascend, counts must be above 0")
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "counts", counts)

    @classmethod
    def from_lengths(cls, lengths: np.ndarray) -> "LengthHistogram":
        """lengths: integers [N], of every row."""
        rows = np.asarray(lengths, np.int64)
        if 0 <= rows.min(initial=0) <= rows.max(initial=0) < _COUNTED * max(len(rows), 1):
            counted = np.bincount(rows)
            distinct = np.flatnonzero(counted)
            return cls(lengths=distinct, counts=counted[distinct])
        distinct, counts = np.unique(rows, return_counts=True)
        return cls(lengths=distinct, counts=counts)

    @classmethod
    def merged(cls, histograms: Iterable["LengthHistogram"]) -> "LengthHistogram":
        """The histogram of the rows of all `histograms`, in any order."""
        histograms = list(histograms)
        if not histograms:
            return cls.from_lengths(np.empty(0, np.int64))
        distinct, index = np.unique(np.concatenate([each.lengths for each in histograms]), return_inverse=True)
        counts = np.zeros(len(distinct), np.int64)
        np.add.at(counts, index, np.concatenate([each.counts for each in histograms]))
        return cls(lengths=distinct, counts=counts)

    @classmethod
    def from_dict(cls, document: Mapping[str, Sequence[int]]) -> "LengthHistogram":
        return cls(lengths=np.array(document["lengths"]), counts=np.array(document["counts"]))

    def to_dict(self) -> dict[str, Any]:
        return {"lengths": self.lengths.tolist(), "counts": self.counts.tolist()}

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    @property
    def events(self) -> int:
        return int(self.lengths @ self.counts)

    @property
    def mean(self) -> float:
        """Mean length; 0 without rows."""
        return self.events / max(self.rows, 1)

    @property
    def longest(self) -> int:
        return int(self.lengths[-1]) if self.lengths.size else 0

    @property
    def empty(self) -> int:
        """Rows of length 0."""
        return int(self.counts[0]) if self.lengths.size and self.lengths[0] == 0 else 0

    def quantile(self, share: float) -> int:
        """The length that at least `share` (0 to 1) of the rows do not exceed; 0 without rows."""
        if not 0 <= share <= 1:
            raise ValueError(f"a quantile needs a share from 0 to 1, got {share}")
        if not self.lengths.size:
            return 0
        wanted = max(int(np.ceil(share * self.rows)), 1)
        return int(self.lengths[np.searchsorted(self.counts.cumsum(), wanted)])

    def top_share(self, share: float) -> float:
        """Share of all events that is in the longest `share` of the rows."""
        if self.events == 0:
            return 0.0
        wanted = max(int(np.ceil(share * self.rows)), 1)
        counts = self.counts[::-1]
        rows = np.clip(wanted - (counts.cumsum() - counts), 0, counts)
        return float(rows @ self.lengths[::-1]) / self.events

    def clipped(self, longest: int) -> "LengthHistogram":
        """The histogram after every history is truncated to `longest` events."""
        cut = np.minimum(self.lengths, longest)
        first = np.flatnonzero(np.diff(cut, prepend=-1))
        counts = np.add.reduceat(self.counts, first) if cut.size else self.counts
        return LengthHistogram(lengths=cut[first], counts=counts)

    def kept_share(self, longest: int) -> float:
        """Share of the events that remains if histories are truncated to `longest`."""
        return self.clipped(longest).events / self.events if self.events else 1.0

    def longer_share(self, longest: int) -> float:
        """Share of the rows that have more than `longest` events."""
        return float(self.counts[self.lengths > longest].sum()) / max(self.rows, 1)

    def draw(self, generator: np.random.Generator, samples: int) -> np.ndarray:
        """int64[samples] lengths of rows drawn with replacement."""
        if not self.lengths.size:
            raise ValueError("cannot draw lengths: the histogram has no rows")
        row = generator.integers(0, self.rows, samples)
        return self.lengths[np.searchsorted(self.counts.cumsum(), row, side="right")]
