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
    """Policies for some rows of a row group; `rows`, `drop` and `faults` are those of `DecodedRows`.

    `drop` is changed in place. What a policy forbids is a fault; where faults are noted, it then is as the default 0.
    Every method raises DataError where the policy is `error` and faults are not noted.
    """

    rows: np.ndarray
    drop: np.ndarray
    faults: Faults

    def scalars(self, binding: Binding, values: np.ndarray, null: np.ndarray | None) -> np.ndarray:
        """int64 or float32 [n], with the default in place of nulls and of numbers that are not finite.

        null: bool [n], None without any.
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
            self.drop[bad] = True  # the 0 that stands there is never read
        return np.where(bad, values.dtype.type(binding.value or 0), values)

    def lists(self, binding: Binding, null: np.ndarray) -> None:
        """Of lists that are null, bool [n]. Under `default` they stay null until they are aligned."""
        if null.any():
            self._forbid(binding, ("null", np.flatnonzero(null), "null"))
            if binding.policy == "drop":
                self.drop[null] = True

    def elements(
        self, binding: Binding, row: np.ndarray, faults: Iterable[tuple[str, np.ndarray, str]], null: np.ndarray
    ) -> None:
        """Of elements of lists; under `default` the caller fills them.

        Args:
            row: int64 [k], the rows that have such elements.
            faults: (kind, rows, what is wrong in the first of them). null: bool [n], lists that are null themselves:
                of all faults that of the earliest row is raised.
        """
        self._forbid(binding, *faults, ("null", np.flatnonzero(null), "null"))
        if binding.policy == "drop":
            self.drop[row] = True

    def without_match(
        self, key: str, lost: np.ndarray, policies: Mapping[str, str], say: Callable[[list[str]], tuple[str, str]]
    ) -> None:
        """Of rows whose key no row of a joined table has.

        Args:
            lost: int64 [k], these rows. policies: field of the table -> its policy.
            say: fields whose policy is `error` -> what is wrong in the first row, and what to do about it.
        """
        strict = [name for name, policy in policies.items() if policy == "error"]
        if len(lost) and strict:
            what, todo = say(strict)
            self.faults.found("no match", key, self.rows[lost], what, todo=todo)
        if "drop" in policies.values():
            self.drop[lost] = True

    def _forbid(self, binding: Binding, *found: tuple[str, np.ndarray, str]) -> None:
        """Faults of a field whose policy is `error`: (kind, which of these rows, ascending, what the first of them is).

        The fault of the earliest row comes first.
        """
        if binding.policy != "error":
            return
        name = binding.field.name
        for kind, rows, what in sorted((each for each in found if len(each[1])), key=lambda each: int(each[1][0])):
            todo = f". Give ParquetSource(defaults={{{name!r}: ...}}) or nulls={{{name!r}: 'drop'}}"
            self.faults.found(kind, name, self.rows[rows], f"{name} is {what}", todo=todo)


def bad_values(values: np.ndarray, null: np.ndarray | None) -> np.ndarray | None:
    """bool [n], values that are null or not finite; None without any. null: bool [n], None without any."""
    bad = null if null is not None and null.any() else None
    if values.dtype == np.float32:
        finite = np.isfinite(values)
        if not finite.all():
            bad = ~finite if bad is None else bad | ~finite
    return bad


def drops_all(bindings: Sequence[Binding]) -> bool:
    """Whether a value that all rows have alike is null under the policy `drop`: `bind` refuses it under `error`."""
    return any(each.origin == "partition" and each.value is None for each in bindings)
