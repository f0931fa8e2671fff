"""The batch that loaders give: with other forms of itself."""

from collections.abc import Mapping
from typing import Any

from fsdata.batch import batch
from fsdata.views.parts import parts_of
from fsdata.views.plain import padded, to_dict


class Batch(batch.Batch):
    """`fsdata.batch.batch.Batch`, which says what it holds and what its methods give."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return to_dict(self)

    def padded(self, max_length: int | Mapping[str, int] | None = None) -> dict[str, Any]:
        return padded(self, max_length)

    def parts(self, number: int) -> list[batch.Batch]:
        found: list[batch.Batch] = parts_of(self, number)
        return found
