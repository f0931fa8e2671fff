"""Columns with one number per row that pyarrow has decoded: they stay in its memory, or are copied once.

A plan says which columns these are, once for all files of a kind. So a record batch costs a handful of calls for all of
its columns together, see `fsdata.kernels.scalars`. Python looks at single columns where values are null or not finite.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from fsdata.catalog.binding.bind import Binding
from fsdata.decode.arrow import widen
from fsdata.decode.block import Scalars
from fsdata.decode.piece import Nulls
from fsdata.kernels import scalars as kernels

_ALIGNED = 64  # bytes
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScalarPlan:
    """C columns of a record batch that hold int64 or float32, one per row; first those of S fields, then the dense.

    Attributes:
        bindings: of each, [C]. columns, itemsize: int64 [C], which column, and bytes of a value.
        slots: int64 [S], of the fields in the layout. places: int64 [C - S], of the dense among these.
        floats: int64, which of the C columns are float32.
    """

    bindings: tuple[Binding, ...]
    columns: np.ndarray
    itemsize: np.ndarray
    slots: np.ndarray
    places: np.ndarray
    floats: np.ndarray

    @classmethod
    def of(cls, fields: Sequence[tuple[Binding, int, int, int]], dense: Sequence[tuple[Binding, int, int]]) -> Self:
        """fields: (binding, column, slot, bytes of a value); dense: (binding, column, place)."""
        itemsize = np.array([*(size for *_, size in fields), *(4 for _ in dense)], np.int64)
        return cls(
            bindings=(*(each[0] for each in fields), *(each[0] for each in dense)),
            columns=np.array([*(each[1] for each in fields), *(each[1] for each in dense)], np.int64),
            itemsize=itemsize,
            slots=np.array([slot for *_, slot, _ in fields], np.int64),
            places=np.array([place for *_, place in dense], np.int64),
            floats=np.flatnonzero(itemsize == 4),
        )


class ScalarColumns:
    """Adds record batches one after another, `size` rows at most.

    Values of a single batch stay where Arrow has decoded them; those of several are copied to one place.

    Args:
        dense: float32 [size, D], filled in place.
    """

    def __init__(self, plan: ScalarPlan, size: int, dense: np.ndarray) -> None:
        self._plan = plan
        self._dense = dense
        self._size = size
        self._fields = len(plan.slots)
        self._first: tuple[np.ndarray, int, tuple[Any, ...]] | None = None
        self._targets = np.empty(0, np.int64)
        self._owners: tuple[Any, ...] = ()

    def add(self, batch: pa.RecordBatch, before: int, nulls: Nulls) -> None:
        """`batch`, after `before` rows. Raises DataError as `Nulls.scalars`."""
        plan, rows = self._plan, batch.num_rows
        if not plan.bindings or not rows:
            return
        found = np.empty((len(plan.bindings), 2), np.int64)
        _, exported = batch.__arrow_c_array__()
        kernels.read_arrays(_address(exported, b"arrow_array"), plan.columns, plan.itemsize, found)
        at, bad = found[:, kernels.AT].copy(), found[:, kernels.NULLS] != 0
        if len(plan.floats):
            not_finite = np.empty(len(plan.floats), np.uint8)
            kernels.find_not_finite(at[plan.floats], rows, not_finite)
            bad[plan.floats] |= not_finite > 0
        owners: tuple[Any, ...] = (batch,)
        for number in np.flatnonzero(bad).tolist():
            array = batch.column(int(plan.columns[number]))
            values = nulls.scalars(plan.bindings[number], *widen.numbers_of(array))
            at[number], owners = values.ctypes.data, (*owners, values)
        if len(plan.places):
            kernels.interleave(at[self._fields :], plan.places, rows, self._dense[before : before + rows])
        if self._fields:
            self._keep(at[: self._fields], before, rows, owners)

    def _keep(self, at: np.ndarray, before: int, rows: int, owners: tuple[Any, ...]) -> None:
        if before == 0:
            self._first = at, rows, owners
            return
        if self._first is not None:
            begin_at, begin_rows, _ = self._first
            self._allocate()
            self._copy(begin_at, 0, begin_rows)
        self._copy(at, before, rows)

    def _allocate(self) -> None:
        """One place for the fields of all rows, field after field."""
        sizes = self._plan.itemsize[: self._fields] * self._size
        sizes = (sizes + _ALIGNED - 1) // _ALIGNED * _ALIGNED
        memory = np.empty(int(sizes.sum()), np.uint8)
        self._targets = memory.ctypes.data + np.cumsum(sizes) - sizes
        self._first, self._owners = None, (memory,)

    def _copy(self, at: np.ndarray, before: int, rows: int) -> None:
        itemsize = self._plan.itemsize[: self._fields]
        kernels.copy_all(at, itemsize, rows, self._targets + before * itemsize)

    def finish(self, rows: int) -> Scalars | None:
        """The fields of all rows added; None without any."""
        if not self._fields or not rows:
            return None
        at, owners = (self._targets, self._owners) if self._first is None else (self._first[0], self._first[2])
        size = rows * int(self._plan.itemsize[: self._fields].sum())
        return Scalars(slots=self._plan.slots, at=at, rows=rows, owners=owners, bytes=size)
