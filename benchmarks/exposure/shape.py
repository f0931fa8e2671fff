"""Sizes of the benchmark's model, for the ranks and for who starts them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of the model. One table and one feature per entry of `sharding`: "row", "table" or "column".

    pooled: rows of each table, in place of `rows`, of an EmbeddingBagCollection; empty: of an EmbeddingCollection.
    slots: rows of each table behind MPZCH, to which ids below `rows` are mapped; 0: ids are rows.
    users: so many users of equally many samples, one user after the other. A sample is the last `ids_per_sample` events
        of its user, so it has one event that the sample before does not have. 0: no two samples are of one user.
    dedup: with TorchRec's index dedup.
    """

    sharding: tuple[str, ...]
    rows: int
    width: int
    samples: int
    ids_per_sample: int
    dense_parameters: int = 0
    pooled: tuple[int, ...] = ()
    slots: int = 0
    users: int = 0
    dedup: bool = False

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"f{table}" for table in range(len(self.sharding)))

    @property
    def table_rows(self) -> tuple[int, ...]:
        return self.pooled or (self.rows,) * len(self.sharding)

    @property
    def ids(self) -> int:
        """Ids per feature, rank and step."""
        return self.samples * self.ids_per_sample

    @property
    def events(self) -> int:
        """Those of all users, per feature, rank and step: without repetition."""
        return self.users * (self.samples // self.users + self.ids_per_sample - 1) if self.users else self.ids
