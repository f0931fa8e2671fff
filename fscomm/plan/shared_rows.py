"""Which rows occur, where first, and which of them two steps have in common: O(ids), no table-sized memory.

Ids are in host memory and go through hash kernels. The same by sorting is `tests/comm/plan/by_sorting.py`.
Letters: N keys or ids, U distinct keys, R distinct rows of an owner, S segments, W peers, T tables.
"""

from dataclasses import dataclass

import numpy as np

from fscomm.plan import hash_tables


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstOccurrences:
    """Distinct keys per segment, in order of first occurrence.

    positions: int32 [U], index into keys. slots: int32 [N], index into positions: keys[positions[slots]] == keys.
    counts: int64 [S] distinct keys of every segment.
    """

    positions: np.ndarray
    slots: np.ndarray
    counts: np.ndarray


def first_occurrences(keys: np.ndarray, segments: np.ndarray) -> FirstOccurrences:
    """The distinct keys inside each of the consecutive segments of `keys`.

    keys: int64 [N]; segments: int64 [S] lengths. Raises ValueError if the lengths do not partition the keys.
    """
    if segments.sum() != len(keys) or (segments < 0).any():
        raise ValueError(f"segments {segments} do not cut {len(keys)} keys: they must be >= 0 and sum to that")
    table = np.full((hash_tables.places_for(segments.max(initial=0)), 2), -1, np.int64)
    positions, slots = (np.empty(len(keys), np.int32) for _ in range(2))
    counts = np.empty_like(segments)
    total = hash_tables.first_occurrences(keys, segments, table, positions, slots, counts)
    return FirstOccurrences(positions=positions[:total].copy(), slots=slots, counts=counts)


class OwnerRows:
    """The distinct rows that all ranks ask of this owner in one step, numbered table after table.

    asked: int64 [N] ids, by peer, then by table, duplicates allowed; lengths: int64 [W, T]; limits: int64 [T] rows of
    each table.

    Attributes:
        numbers: int32 [N] of the row of each id.
        ids: int64 [R]. ends: int64 [T] how many rows there are up to each table.
        irregular: an id lies outside its table; it counts as row 0.
    """

    def __init__(self, asked: np.ndarray, lengths: np.ndarray, limits: np.ndarray) -> None:
        asked_of = zip(lengths.sum(0).tolist(), limits.tolist(), strict=True)
        places = [max(limit, 1) if limit <= 4 * n else hash_tables.places_for(n) for n, limit in asked_of]
        self._limits = limits
        self._regions = np.cumsum([0, *places])
        self._heads = np.empty(self._regions[-1], np.int32)
        self.numbers = np.empty(len(asked), np.int32)
        ids = np.empty(len(asked), np.int64)
        self.ends = np.zeros(len(limits), np.int64)
        self.irregular: bool = hash_tables.number_rows(
            asked, lengths, limits, self._regions, self._heads, self.numbers, ids, self.ends
        )
        self.ids = ids[: self.ends[-1] if len(limits) else 0].copy()

    def __len__(self) -> int:
        return len(self.ids)

    def mark_common(self, other: "OwnerRows", later: np.ndarray, mine: np.ndarray, others: np.ndarray) -> None:
        """Where a row is asked for in both steps, of the same tables: its class in `mine` uint8 [R] becomes 0, and that
        in `others` uint8 [R'] what `later` uint8 [R] says, or stays what it is if that is less."""
        hash_tables.mark_common(
            self.ids, self.ends, self._limits, other.ids, other._heads, other._regions, later, mine, others
        )
