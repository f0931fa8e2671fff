"""The distribution of the tables of one sharding group: all that planning needs to know about a sharded module.

A *group* is the tables of one module that have one sharding type: TorchRec fuses them into one exchange. A rank is the
*requester* of rows that its samples name and the *owner* of the rows that it holds.

W ranks, F features of one owner, T tables of one owner.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

# Of exclusive rows from one rank to all others, by the device of the tables. Collision rows wait for chunks that are
# under way; each chunk costs a few hundred microseconds on the host. The size for GPUs, which have faster connections,
# is assumed, not measured.
CHUNK_BYTES: Mapping[str, int] = {"cpu": 512 << 10, "cuda": 16 << 20}
_CHUNK_US = 10_000  # on links that are measured; less than a collision exchange takes on slow ones
_MOST_CHUNK_BYTES = 16 << 20
MOST_RANKS_PER_HOST = 64  # that a row may be passed on to: one bit each


def chunk_bytes(least: int, us_per_mb: int) -> int:
    """At least so many, and more on a link that carries more in `_CHUNK_US`. us_per_mb: 0 if that is not known."""
    if us_per_mb == 0:
        return least
    return max(least, min(_CHUNK_US * 1_000_000 // us_per_mb, _MOST_CHUNK_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """Of a group that returns one vector for each *bag*: the ids of one feature of one sample.

    Attributes:
        strips: [W][F] how many strips of `GroupLayout.dim` columns the vectors of each feature of an owner have.
        owners: of each vector: one, or so many consecutive ranks, of which each has a part, and parts are added up:
            row-wise all ranks, table-row-wise and grid those of a host. W is a multiple of it.
        mean: vectors are averages over the ids of a bag, for some tables.
    """

    strips: tuple[tuple[int, ...], ...]
    owners: int
    mean: bool

    @property
    def of_hosts(self) -> tuple[tuple[int, ...], ...]:
        """`strips` of the features of each set of owners: what it gives has so many columns of strips."""
        return self.strips[:: self.owners]

    @property
    def sample_order(self) -> list[int]:
        """[W] when each rank's samples come, in what a kernel reads and in what hosts add up: the first ranks of all
        sets of owners, then the second ones."""
        world_size, sets = len(self.strips), len(self.of_hosts)
        return [rank % self.owners * sets + rank // self.owners for rank in range(world_size)]


@dataclass(frozen=True, kw_only=True)
class GroupLayout:
    """One sharding group as seen from `rank`.

    Attributes:
        module: name of the sharded module inside the model.
        sharding: TorchRec's sharding type, such as `row_wise`.
        dim: columns of a row (those of one shard if column-wise), or of a strip of a pooled vector.
        dtype: of a row as it travels; gradients may have another one.
        width: numbers of that dtype that a row travels as; None if `dim`.
        runs: [W][T] for every owner and each of its tables, in the order in which ids are sent to it, the number of
            consecutive features that read the table.
        rows: [T] rows of the tables that this rank owns.
        kernels: how many of these tables each fused kernel has, in order; None: one has all.
        chunk_bytes: what a rank sends of exclusive rows in one exchange, about; more on fast links.
        pooling: None where every id gets its row.
        ranks_per_host: so many consecutive ranks share a host; 1 if nothing is known of hosts.
        reassigns: owners assign rows to ids, and a forward may reassign rows.
        dedups: in a step of several parts a rank asks for each id once.
    """

    module: str
    sharding: str
    rank: int
    world_size: int
    dim: int
    dtype: torch.dtype
    runs: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...]
    kernels: tuple[int, ...] | None = None
    chunk_bytes: int = CHUNK_BYTES["cpu"]
    pooling: Pooling | None = None
    width: int | None = None
    ranks_per_host: int = 1
    reassigns: bool = False
    dedups: bool = False

    def __post_init__(self) -> None:
        if len(self.runs) != self.world_size or len(self.runs[self.rank]) != len(self.rows):
            raise ValueError(
                f"{self.module}: {len(self.runs)} owners with {len(self.rows)} tables here for world size "
                f"{self.world_size} and runs {self.runs}"
            )
        if self.kernels is not None and sum(self.kernels) != len(self.rows):
            raise ValueError(f"{self.module}: kernels with {self.kernels} tables for the {len(self.rows)} tables here")

    @cached_property
    def features(self) -> np.ndarray:
        """int64[W] features whose ids go to each owner."""
        return np.array([sum(runs) for runs in self.runs], np.int64)

    @cached_property
    def tables(self) -> np.ndarray:
        """int64[W] tables of each owner."""
        return np.array([len(runs) for runs in self.runs], np.int64)

    @cached_property
    def runs_of_kernels(self) -> list[np.ndarray]:
        """For each fused kernel of this rank int64: `runs` of its tables."""
        kernels = self.kernels if self.kernels is not None else (len(self.rows),) * bool(self.rows)
        ends = np.cumsum(kernels, dtype=np.int64).tolist()
        runs = np.array(self.runs[self.rank], np.int64)
        return [runs[end - tables : end] for end, tables in zip(ends, kernels, strict=True)]

    @cached_property
    def flat_runs(self) -> np.ndarray:
        """int64: `runs` of all owners, one after the other."""
        return np.array([run for runs in self.runs for run in runs], np.int64)

    @property
    def mixes_classes(self) -> bool:
        """A unit may have rows of several classes: a bag travels whole."""
        return self.pooling is not None

    @property
    def two_levels(self) -> bool:
        """A row goes to another host once, to a rank that passes it on there. Pooled vectors have one requester."""
        return self.pooling is None and 1 < self.ranks_per_host < self.world_size

    @property
    def classes_ahead(self) -> int:
        """C of the rows before a step. Reassigned rows have one of their own."""
        return 2 if self.reassigns else 1

    @property
    def host(self) -> slice:
        """The ranks of this rank's host."""
        first = self.rank - self.rank % self.ranks_per_host
        return slice(first, first + self.ranks_per_host)

    @property
    def row_width(self) -> int:
        return self.dim if self.width is None else self.width

    @property
    def row_bytes(self) -> int:
        return self.row_width * self.dtype.itemsize
