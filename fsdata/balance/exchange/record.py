"""How one sample looks on the wire, and where its fields lie in a received buffer (pure index arithmetic).

A record is all fields of one sample, one after another, padded to 8 bytes. Fields stand in order of falling alignment,
so every field starts at a multiple of its own item size.

Letters: F fields, G groups of fields that share lengths, N samples, W ranks.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from fsdata.decode.row_layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpec:
    """The fields of a sample.

    Attributes:
        names: F field names, for messages.
        itemsize: int64 [F], bytes per element.
        group: int64 [F], index into `groups`, or -1 where every sample has `width` elements.
        width: int64 [F].
        groups: G names.
        group_field: int64 [G], the field whose row of a `RowTable` holds the group's lengths.
        referred: fields whose values the receiver has, and that do not travel.
        uncounted: so many of the last groups are lengths of texts, which say nothing of a sample's work.
    """

    names: tuple[str, ...]
    itemsize: np.ndarray
    group: np.ndarray
    width: np.ndarray
    groups: tuple[str, ...]
    group_field: np.ndarray
    referred: frozenset[int] = frozenset()
    uncounted: int = 0

    def __post_init__(self) -> None:
        shapes = {len(self.names), len(self.itemsize), len(self.group), len(self.width)}
        if len(shapes) != 1 or len(self.groups) != len(self.group_field):
            raise ValueError(f"a RecordSpec of {len(self.names)} fields whose arrays disagree")
        alignment = alignment_of(self.itemsize)
        if np.any(alignment[1:] > alignment[:-1]):
            raise ValueError(
                f"fields must stand in order of falling alignment, got item sizes {self.itemsize.tolist()}"
            )

    @classmethod
    def of_layout(cls, layout: Layout) -> "RecordSpec":
        groups = {**layout.groups, **layout.texts}
        index = {name: i for i, name in enumerate(groups)}
        histories = layout.references
        return cls(
            names=layout.names,
            referred=frozenset(row for row, field in enumerate(layout.fields) if field.group in histories),
            itemsize=layout.itemsize,
            group=np.array([-1 if f.group is None else index[f.group] for f in layout.fields], np.int64),
            width=np.array([f.width for f in layout.fields], np.int64),
            groups=tuple(groups),
            group_field=np.array(list(groups.values()), np.int64),
            uncounted=len(layout.texts),
        )

    @property
    def counted(self) -> tuple[str, ...]:
        """The groups that plans and losses know of, the first ones."""
        return self.groups[: len(self.groups) - self.uncounted]

    @property
    def digest(self) -> int:
        """A positive int64 that two specs share only if records of one can be read as records of the other."""
        text = repr(
            (
                self.names,
                self.itemsize.tolist(),
                self.group.tolist(),
                self.width.tolist(),
                self.groups,
                sorted(self.referred),
            )
        )
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1 | 1

    @property
    def sent(self) -> np.ndarray:
        """int64 [F], bytes per element that travel."""
        sent = self.itemsize.copy()
        sent[list(self.referred)] = 0
        return sent

    def group_lengths(self, length: np.ndarray) -> np.ndarray:
        """int64 [G, N] from the lengths of all fields, int64 [F, N]."""
        return np.ascontiguousarray(length[self.group_field])

    def field_lengths(self, lengths: np.ndarray) -> np.ndarray:
        """int64 [F, N] from the lengths of the groups, int64 [G, N]."""
        fixed = np.broadcast_to(self.width[:, None], (len(self.names), lengths.shape[1]))
        if not len(self.groups):
            return np.ascontiguousarray(fixed)
        return np.where(self.group[:, None] >= 0, lengths[self.group], fixed)

    def record_bytes(self, lengths: np.ndarray) -> np.ndarray:
        """int64 [N], padded to 8, from the lengths of the groups, int64 [G, N]."""
        fixed = int((self.sent * self.width)[self.group < 0].sum())
        per_element = np.zeros(len(self.groups), np.int64)
        jagged = self.group >= 0
        np.add.at(per_element, self.group[jagged], self.sent[jagged])
        return (fixed + per_element @ lengths + 7) & ~7

    def addresses(self, length: np.ndarray, record: np.ndarray) -> np.ndarray:
        """int64 [F, N], where each field that travels starts, from all field lengths and each record's address [N]."""
        size = length * self.sent[:, None]
        return record[None, :] + np.cumsum(size, axis=0) - size


def alignment_of(itemsize: np.ndarray) -> np.ndarray:
    """int64 [F]: the largest power of two, at most 8, that divides the item size."""
    return np.gcd(itemsize, 8)
