"""The numbers of the recorder: arrays of the last steps, in a ring, and the sums of all steps.

A column has one number per step, such as the exposed milliseconds of one kind. Adding to it is all that an event costs;
the objects that users see are made when they ask for a report.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fscomm.report.report import Collisions, Managed, StepReport, Traffic
from fscomm.report.verdict import AGREEMENT

T = TypeVar("T")
Column = tuple[str, ...]
"""What is added up, then its kind, module or table: ("exposed", kind), ("bytes", module, kind, "sent")."""

STEP: Column = ("step",)
_TOTAL = -1  # the number of the step that sums all
_COLUMNS = 32  # to begin with


class Snapshot(NamedTuple):
    """values: float64 [steps, columns]; the first step is the total."""

    steps: list[int]
    columns: dict[Column, int]
    values: np.ndarray

    def reports(self) -> list[StepReport]:
        """The total, then the steps in ascending order."""
        at: dict[str, Any] = {"exposed": {}, "inline": {}, "hidden": {}, "unassigned": {}}
        at |= {"collisions": {}, "managed": {}, "bytes": {}, "step": None}
        for (*names, last), column in self.columns.items():
            inner = at
            for name in names:
                inner = inner.setdefault(name, {})
            inner[last] = column
        rows = np.where(np.isnan(self.values), None, self.values).tolist()  # type: ignore[call-overload]
        return [_report(step, at, row) for step, row in zip(self.steps, rows, strict=True)]


class StepTable:
    """Keeps the last `keep` steps. Not thread-safe: the caller holds a lock.

    Attributes:
        num_steps: that anything was added to.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._columns: dict[Column, int] = {}
        self._steps = [_TOTAL] * keep  # the step of each row; _TOTAL in unused rows
        # NaN where nothing was added: reports leave such a kind out, but show a wait that took 0 ms. Counts share the
        # array with times, as float64 holds them exactly up to 2**53, the bytes of months.
        self._rows = np.full((keep, _COLUMNS), np.nan)
        self._total = np.full(_COLUMNS, np.nan)
        self.num_steps = 0

    def add(self, step: int | None, column: Column, value: float) -> None:
        """To `step` and to the total; to the total only where `step` is None, negative, or no longer kept."""
        at = self._columns.get(column)
        if at is None:
            at = self._new(column)
        before = self._total.item(at)
        self._total[at] = value if before != before else before + value
        if step is None or step < 0:
            return
        row = step % self._keep
        if self._steps[row] != step:
            if self._steps[row] > step:
                return
            self._rows[row] = np.nan
            self._steps[row] = step
            self.num_steps += 1
        before = self._rows.item(row, at)
        self._rows[row, at] = value if before != before else before + value

    def add_counts(self, step: int, what: str, name: str, counts: Any) -> None:
        """Every field of `counts`, a `Collisions` or a `Managed`."""
        for field in counts.__slots__:
            self.add(step, (what, name, field), getattr(counts, field))

    def snapshot(self, steps: range | None = None) -> Snapshot:
        """A copy, so that reports are made from it without the lock. steps: only these; None: all that are kept."""
        used = len(self._columns)
        if steps is None:
            kept = sorted((step, row) for row, step in enumerate(self._steps) if step != _TOTAL)
        else:
            rows_of = ((step, step % self._keep) for step in steps[-self._keep :])
            kept = [(step, row) for step, row in rows_of if self._steps[row] == step]
        rows = self._rows[[row for _, row in kept], :used]
        values = np.vstack([self._total[:used], rows])
        return Snapshot([_TOTAL, *(step for step, _ in kept)], dict(self._columns), values)

    def _new(self, column: Column) -> int:
        at = self._columns[column] = len(self._columns)
        if at == len(self._total):
            self._rows = np.hstack([self._rows, np.full_like(self._rows, np.nan)])
            self._total = np.hstack([self._total, np.full_like(self._total, np.nan)])
        return at


def _report(step: int, at: dict[str, Any], row: list[float | None]) -> StepReport:
    """at: the columns, nested by their words. row: the numbers of the step by column; None where it has none."""

    def times(what: str) -> dict[str, Any]:
        return {kind: row[column] for kind, column in at[what].items() if row[column] is not None}

    def counts(make: Callable[..., T], by_name: dict[str, dict[str, int]]) -> dict[str, T]:
        found = {}
        for name, fields in by_name.items():  # an event adds to all of its fields, so there are all of them or none
            if numbers := {field: int(n) for field, column in fields.items() if (n := row[column]) is not None}:
                found[name] = make(**numbers)
        return found

    exposed = times("exposed")
    traffic = {module: counts(Traffic, kinds) for module, kinds in at["bytes"].items()}
    return StepReport(
        step=step,
        collisions=counts(Collisions, at["collisions"]),
        managed=counts(Managed, at["managed"]),
        bytes={module: by_kind for module, by_kind in traffic.items() if by_kind},
        exposed_ms=exposed,
        inline_ms=times("inline"),
        hidden_ms=times("hidden"),
        straggler_ms=exposed.get(AGREEMENT, 0.0),
        step_ms=None if at["step"] is None else row[at["step"]],
        unassigned_ms=times("unassigned"),
    )
