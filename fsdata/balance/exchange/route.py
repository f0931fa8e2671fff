"""Where the values of samples that change rank lie on their way: what each rank sends, receives, and has then (pure).

Letters: F fields, G groups of fields that share lengths, N samples of the global batch, n of one rank, W ranks.
"""

from dataclasses import dataclass

import numpy as np

from fsdata.balance.exchange.record import RecordSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """Where the values of M samples lie in a buffer: of one rank after those of another, field after field.

    Attributes:
        bytes: int64 [W], of every rank.
        part: int64 [W, F], where the values of a rank's field begin; a multiple of 8.
        value: int64 [F, M], where those of each sample begin.
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
        parts = (np.diff(before[:, bounds], axis=1).T + 7) & ~7
        part = (np.cumsum(parts.ravel()) - parts.ravel()).reshape(parts.shape)
        value = part.T[:, rank] + before[:, :-1] - before[:, bounds[rank]]
        return cls(bytes=parts.sum(axis=1), part=part, value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The part of one rank in moving samples.

    Attributes:
        order: int64 [M], own rows to send, by destination, then row; away: where their values go in the send buffer.
        sender: int64 [R], the home rank of every sample that arrives, ascending; length: int64 [G, R], of its groups;
            here: where their values lie in the received buffer.
        stay: int64, own rows that stay. origin: int64 [n, 2], home rank and row of every sample that this rank has
            afterwards, in order; place: int64 [n], its place among those that stay, followed by those that arrive.
    """

    order: np.ndarray
    away: Parcel
    sender: np.ndarray
    length: np.ndarray
    here: Parcel
    stay: np.ndarray
    origin: np.ndarray
    place: np.ndarray

    @classmethod
    def of(cls, spec: RecordSpec, lengths: np.ndarray, counts: np.ndarray, rank: np.ndarray, me: int) -> "Route":
        """lengths: int64 [G, N] of the global batch; counts: int64 [W], samples per home rank; rank: int64 [N]."""
        world_size = len(counts)
        first = np.cumsum(counts) - counts
        home = np.repeat(np.arange(world_size), counts)
        mine = slice(int(first[me]), int(first[me] + counts[me]))
        order = np.argsort(rank[mine], kind="stable")
        order = order[rank[mine][order] != me]
        sample = np.flatnonzero(rank == me)
        of_others = home[sample] != me
        arriving = sample[of_others]
        origin = np.stack([home[sample], sample - first[home[sample]]], axis=1)
        place = np.empty(len(sample), np.int64)
        place[~of_others] = np.arange(len(sample) - len(arriving))
        place[of_others] = len(sample) - len(arriving) + np.arange(len(arriving))
        sent = spec.field_lengths(lengths[:, mine][:, order])
        received = lengths[:, arriving]
        return cls(
            order=order,
            away=Parcel.of(rank[mine][order], sent, spec.sent, world_size),
            sender=home[arriving],
            length=received,
            here=Parcel.of(home[arriving], spec.field_lengths(received), spec.sent, world_size),
            stay=origin[~of_others, 1],
            origin=origin,
            place=place,
        )
