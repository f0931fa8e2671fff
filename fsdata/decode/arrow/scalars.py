"""Columns with one number per row that pyarrow decoded: used in its memory, or copied once.

A record batch costs a handful of kernel calls for all of its columns together (`fsdata.kernels.scalars`), since flat
tables have hundreds of columns. Single columns are handled in Python only if values are null or not finite.
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
from fsdata.decode.nulls import Nulls
from fsdata.decode.reused_buffers import Pool
from fsdata.kernels import scalars as kernels

_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScalarPlan:
    """C columns of a finished batch with one int64 or float32 per row: first those of S fields, then dense fields.

    Attributes:
        bindings: [C]. columns, itemsize: int64 [C], index in the batch, and bytes of a value.
        slots: int64 [S], slots of the layout. places: int64 [C - S], indices among the dense fields.
        floats: int64, indices of the float32 columns among the C.
        offsets: int64 [S], offset of each field in a packed row, in bytes. row_bytes: size of such a row.
    """

    bindings: tuple[Binding, ...]
    columns: np.ndarray
    itemsize: np.ndarray
    slots: np.ndarray
    places: np.ndarray
    floats: np.ndarray
    offsets: np.ndarray
    row_bytes: int

    @classmethod
    def of(cls, fields: Sequence[tuple[Binding, int, int, int]], dense: Sequence[tuple[Binding, int, int]]) -> Self:
        """fields: (binding, column, slot, bytes of a value); dense: (binding, column, place)."""
        itemsize = np.array([*(size for *_, size in fields), *(4 for _ in dense)], np.int64)
        sizes = itemsize[: len(fields)]
        order, offsets = np.argsort(-sizes, kind="stable"), np.empty_like(sizes)  # so that all are aligned
        offsets[order] = np.cumsum(sizes[order]) - sizes[order]
        return cls(
            bindings=(*(each[0] for each in fields), *(each[0] for each in dense)),
            columns=np.array([*(each[1] for each in fields), *(each[1] for each in dense)], np.int64),
            itemsize=itemsize,
            slots=np.array([slot for *_, slot, _ in fields], np.int64),
            places=np.array([place for *_, place in dense], np.int64),
            floats=np.flatnonzero(itemsize == 4),
            offsets=offsets,
            row_bytes=int(-(-sizes.sum() // 8) * 8),
        )


class ScalarColumns:
    """Collects record batches, of `size` rows at most.

    Values of a single batch stay in Arrow's memory; those of several are copied to one buffer.

    Args:
        dense: float32 [size, D], filled in place.
        pool: memory for rows that are retained long and read in another order: they are packed row by row, so that a
            row takes a few cache lines, and not one for each field.
    """

    def __init__(self, plan: ScalarPlan, size: int, dense: np.ndarray, pool: Pool | None) -> None:
        self._plan = plan
        self._size = size
        self._pool = pool
        self._itemsize = plan.itemsize[: len(plan.slots)]
        self._at, self._step = np.empty(0, np.int64), self._itemsize  # bytes
        self._owners: tuple[Any, ...] = ()
        self._copied = False
        self._dense = dense.ctypes.data + 4 * plan.places, np.full(len(plan.places), 4 * dense.shape[1])

    def add(self, batch: pa.RecordBatch, before: int, nulls: Nulls) -> None:
        """Add a batch behind `before` rows. Raises DataError as `Nulls.scalars`."""
        plan, rows, fields = self._plan, batch.num_rows, len(self._plan.slots)
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
            target, step = self._dense
            kernels.spread(at[fields:], plan.itemsize[fields:], rows, target + before * step, step)
        if not fields:
            return
        if before == 0 and self._pool is None:
            self._at, self._owners = at[:fields], owners
            return
        if not self._copied:
            self._move(before)
        self._copy(at[:fields], before, rows)

    def _move(self, rows: int) -> None:
        """Allocate one buffer for all rows, and copy the first batch to it."""
        held, first = self._owners, self._at
        offsets, size = self._plan.offsets, self._plan.row_bytes
        if self._pool is None:
            memory: Any = np.empty(size * self._size, np.uint8)
            self._at = memory.ctypes.data + offsets * self._size
        else:
            memory = self._pool.take(size * self._size)
            self._at, self._step = memory.address + offsets, np.full(len(offsets), size)
        self._owners, self._copied = (memory,), True
        if held:
            self._copy(first, 0, rows)

    def _copy(self, at: np.ndarray, before: int, rows: int) -> None:
        kernels.spread(at, self._itemsize, rows, self._at + before * self._step, self._step)

    def finish(self, rows: int) -> Scalars | None:
        """The fields of all rows added; None without rows or fields."""
        if not len(self._itemsize) or not rows:
            return None
        return Scalars(
            slots=self._plan.slots,
            at=self._at,
            step=self._step // self._itemsize,
            rows=rows,
            owners=self._owners,
            bytes=rows * self._plan.row_bytes,
        )
