"""What ranks have to know of a sample that travels: its fields, and which of them share lengths (pure).

Letters: F fields, G groups of fields that share lengths, N samples.
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
        group_field: int64 [G], the field whose lengths are those of the group.
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
        """A positive int64 that two specs share only if a rank with one can read what a rank with the other sends."""
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
