"""The batch that loaders yield, with the views that `fsdata.batch.batch.Batch` declares."""

from collections.abc import Mapping
from typing import Any

from fsdata.batch import batch
from fsdata.views.parts import cut_batch
from fsdata.views.plain import padded, to_dict


class Batch(batch.Batch):
    """Implements the views; see `fsdata.batch.batch.Batch` for attributes and methods."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return to_dict(self)

    def padded(self, max_length: int | Mapping[str, int] | None = None) -> dict[str, Any]:
        return padded(self, max_length)

    def parts(self, number: int) -> list[batch.Batch]:
        return cut_batch(self, number)
