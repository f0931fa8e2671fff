"""Null policies: what becomes of values that are null or not finite, and of keys without a match.

Decoders and stages call this where they find such values; `fsdata.decode.align` makes lists of defaults, since only it
knows how long the other lists of a row are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fsdata.catalog.binding.bind import Binding
from fsdata.errors import Faults


@dataclass(frozen=True, slots=True)
class Nulls:
    """Null policies, applied to rows of a row group. `rows`, `drop` and `faults` are those of `DecodedRows`.

    Policy `drop` sets `drop` in place. Policy `error` is a fault: DataError, or a note and the default 0.
    """

    rows: np.ndarray
    drop: np.ndarray
    faults: Faults

    def scalars(self, binding: Binding, values: np.ndarray, null: np.ndarray | None) -> np.ndarray:
        """int64 or float32 [n], with the default in place of nulls and of numbers that are not finite.

        null: bool [n], None if no value is null.
        """
        bad = bad_values(values, null)
        if bad is None:
            return values
        absent = np.zeros_like(bad) if null is None else null
        self._forbid(
            binding,
            ("null", np.flatnonzero(absent), "null"),
            ("not finite", np.flatnonzero(bad & ~absent), "NaN or infinite"),
        )
        if binding.policy == "drop":
            self.drop[bad] = True  # the default in these rows is never read
        return np.where(bad, values.dtype.type(binding.value or 0), values)

    def lists(self, binding: Binding, null: np.ndarray) -> None:
        """Apply the policy to null lists, bool [n]. Under `default` they stay null until lists are aligned."""
        if null.any():
            self._forbid(binding, ("null", np.flatnonzero(null), "null"))
            if binding.policy == "drop":
                self.drop[null] = True

    def elements(
        self, binding: Binding, row: np.ndarray, faults: Iterable[tuple[str, np.ndarray, str]], null: np.ndarray
    ) -> None:
        """Apply the policy to elements of lists that are null or not finite. Under `default` the caller fills them.

        Args:
            row: int64 [k], rows with such elements.
            faults: (kind, rows, description of the first one). null: bool [n], null lists: the fault of the earliest
                row of all is raised.
        """
        self._forbid(binding, *faults, ("null", np.flatnonzero(null), "null"))
        if binding.policy == "drop":
            self.drop[row] = True

    def without_match(
        self, key: str, lost: np.ndarray, policies: Mapping[str, str], say: Callable[[list[str]], tuple[str, str]]
    ) -> None:
        """Apply the policies of a joined table's fields to rows whose key is not in the table.

        Args:
            lost: int64 [k], these rows. policies: field -> policy.
            say: fields with policy `error` -> (description of the fault of the first row, remedy).
        """
        strict = [name for name, policy in policies.items() if policy == "error"]
        if len(lost) and strict:
            what, todo = say(strict)
            self.faults.found("no match", key, self.rows[lost], what, todo=todo)
        if "drop" in policies.values():
            self.drop[lost] = True

    def _forbid(self, binding: Binding, *found: tuple[str, np.ndarray, str]) -> None:
        """Report faults if the policy is `error`, that of the earliest row first.

        found: (kind, rows, ascending, description of the first one).
        """
        if binding.policy != "error":
            return
        name = binding.field.name
        for kind, rows, what in sorted((each for each in found if len(each[1])), key=lambda each: int(each[1][0])):
            todo = f". Give ParquetSource(defaults={{{name!r}: ...}}) or nulls={{{name!r}: 'drop'}}"
            self.faults.found(kind, name, self.rows[rows], f"{name} is {what}", todo=todo)


def bad_values(values: np.ndarray, null: np.ndarray | None) -> np.ndarray | None:
    """bool [n], values that are null or not finite; None if there are none. null: bool [n], None if none is null."""
    bad = null if null is not None and null.any() else None
    if values.dtype == np.float32:
        finite = np.isfinite(values)
        if not finite.all():
            bad = ~finite if bad is None else bad | ~finite
    return bad


def drops_all(bindings: Sequence[Binding]) -> bool:
    """Whether a partition value is null under policy `drop`. `bind` rejects others."""
    return any(each.origin == "partition" and each.value is None for each in bindings)
