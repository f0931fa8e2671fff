"""The record layout of samples that travel, and the positions of their values in the buffers (pure planning).

Letters: F fields, G groups of fields that share lengths, N samples of the global batch, n of one rank, W ranks.
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
        referred: fields whose values do not travel, as the receiver has them: histories that a host shares.
        uncounted: the last `uncounted` groups are lengths of texts, which do not count as work of a sample.
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
        """The groups that plans and losses count: the first ones."""
        return self.groups[: len(self.groups) - self.uncounted]

    @property
    def digest(self) -> int:
        """A positive int64, equal on two ranks only if each can read what the other sends."""
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
        # Not `hash`, which differs between processes. Positive and not 0: in a status word 0 means "not known yet".
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1 | 1

    @property
    def sent(self) -> np.ndarray:
        """int64 [F], bytes sent per element; 0 for fields that do not travel."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """The positions of the values of M samples in a buffer: rank after rank, and for each rank field after field.

    Attributes:
        bytes: int64 [W], size of each rank's part.
        part: int64 [W, F], offset of the values of a rank's field; a multiple of 8.
        value: int64 [F, M], offset of each sample's values.
    """

    bytes: np.ndarray
    part: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, rank: np.ndarray, length: np.ndarray, itemsize: np.ndarray, world_size: int) -> "Parcel":
        """rank: int64 [M], ascending; length: int64 [F, M]; itemsize: int64 [F], bytes of a value."""
        size = length * itemsize[:, None]
        before = np.concatenate([np.zeros((len(itemsize), 1), np.int64), np.cumsum(size, axis=1)], axis=1)
        bounds = np.searchsorted(rank, np.arange(world_size + 1))
        parts = (np.diff(before[:, bounds], axis=1).T + 7) & ~7  # rounded up to 8: values of any field are aligned
        part = (np.cumsum(parts.ravel()) - parts.ravel()).reshape(parts.shape)
        value = part.T[:, rank] + before[:, :-1] - before[:, bounds[rank]]
        return cls(bytes=parts.sum(axis=1), part=part, value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The samples that one rank sends, receives and keeps in a step.

    Attributes:
        order: int64 [M], own rows to send, by destination, then row; outgoing: their values in the send buffer.
        sender: int64 [R], the home rank of every incoming sample, ascending; length: int64 [G, R], of its groups;
            incoming: their values in the received buffer.
        stay: int64, own rows that stay. origin: int64 [n, 2], home rank and row of every sample that this rank has
            afterwards, in order; position: int64 [n], its position in the list of own rows that stay, followed by
            incoming ones.
    """

    order: np.ndarray
    outgoing: Parcel
    sender: np.ndarray
    length: np.ndarray
    incoming: Parcel
    stay: np.ndarray
    origin: np.ndarray
    position: np.ndarray

    @classmethod
    def of(cls, spec: RecordSpec, lengths: np.ndarray, counts: np.ndarray, rank: np.ndarray, me: int) -> "Route":
        """lengths: int64 [G, N] of the global batch; counts: int64 [W], samples per home rank; rank: int64 [N]."""
        world_size = len(counts)
        first = np.cumsum(counts) - counts
        home = np.repeat(np.arange(world_size), counts)
        own = slice(int(first[me]), int(first[me] + counts[me]))
        # Sender and receiver list the samples of a pair of ranks in the order of rows: no index travels with them.
        order = np.argsort(rank[own], kind="stable")
        order = order[rank[own][order] != me]
        sample = np.flatnonzero(rank == me)
        of_others = home[sample] != me
        arriving = sample[of_others]
        origin = np.stack([home[sample], sample - first[home[sample]]], axis=1)
        position = np.empty(len(sample), np.int64)
        position[~of_others] = np.arange(len(sample) - len(arriving))
        position[of_others] = len(sample) - len(arriving) + np.arange(len(arriving))
        sent = spec.field_lengths(lengths[:, own][:, order])
        received = lengths[:, arriving]
        return cls(
            order=order,
            outgoing=Parcel.of(rank[own][order], sent, spec.sent, world_size),
            sender=home[arriving],
            length=received,
            incoming=Parcel.of(home[arriving], spec.field_lengths(received), spec.sent, world_size),
            stay=origin[~of_others, 1],
            origin=origin,
            position=position,
        )
