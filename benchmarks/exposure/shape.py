"""Sizes of the benchmark's model, for the ranks and for who starts them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of the model. One table and one feature per entry of `sharding`: "row", "table" or "column".

    pooled: rows of each table, in place of `rows`, of an EmbeddingBagCollection; empty: of an EmbeddingCollection.
    slots: rows of each table behind MPZCH, to which ids below `rows` are mapped; 0: ids are rows.
    """

    sharding: tuple[str, ...]
    rows: int
    width: int
    samples: int
    ids_per_sample: int
    dense_parameters: int = 0
    pooled: tuple[int, ...] = ()
    slots: int = 0

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
