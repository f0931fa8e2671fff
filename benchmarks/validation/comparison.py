"""Makes one line of a comparison: a fitted or predicted figure beside the measured one.

A line is {what, fitted, predicted, measured, unit, error, within, asked, verdict}. `error` is relative to the
measurement, or with the unit "points" the difference in percentage points; `within` is the tolerance of it, `verdict`
is "fitted", "within", "missed", or None where nothing is predicted.
"""

from typing import Any


def row(
    what: str, unit: str, measured: float, *, fitted: float | None = None, predicted: float | None = None,
    within: float | None = None, asked: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """One line. Give `fitted`, or `predicted` together with `within`."""
    error = verdict = None
    if fitted is not None:
        verdict = "fitted"
    elif predicted is not None and within is not None:
        error = predicted / measured - 1 if measured else None
        verdict = "within" if error is not None and abs(error) <= within else "missed"
    return {
        "what": what, "unit": unit, "fitted": fitted, "predicted": predicted, "measured": measured, "error": error,
        "within": within, "asked": asked, "verdict": verdict,
    }  # fmt: skip


def points_row(
    what: str, measured: float, *, predicted: float | None = None, low: float = 0.0, high: float = 0.0,
    within: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """One line of shares in percent. Within is also a measurement inside the interval `low` to `high` of the
    prediction; without a prediction there is no interval."""
    found = row(what, "points", measured) | {"within": within}
    if predicted is None:
        return found
    error = predicted - measured
    verdict = "within" if abs(error) <= within or low <= measured <= high else "missed"
    return found | {"predicted": predicted, "error": error, "verdict": verdict, "low": low, "high": high}
