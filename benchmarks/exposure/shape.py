"""Sizes of the benchmark's model, for the ranks and for who starts them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of the model. One table and one feature per entry of `sharding`: "row", "table" or "column"."""

    sharding: tuple[str, ...]
    rows: int
    width: int
    samples: int
    ids_per_sample: int
    dense_parameters: int = 0

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"f{table}" for table in range(len(self.sharding)))

    @property
    def ids(self) -> int:
        """Ids per feature, rank and step."""
        return self.samples * self.ids_per_sample
