"""Makes one line of a comparison: a fitted or predicted figure beside the measured one.

A line is {what, fitted, predicted, measured, unit, error, within, verdict}. `error` is relative to the measurement, or
with the unit "points" the difference in percentage points; `within` is the tolerance of it, `verdict` is "fitted",
"within" or "missed".
"""

from typing import Any


def fitted_row(what: str, unit: str, measured: float, fitted: float) -> dict[str, Any]:
    return _row(what, unit, measured, fitted=fitted, verdict="fitted")


def row(what: str, unit: str, measured: float, predicted: float, *, within: float) -> dict[str, Any]:
    error = predicted / measured - 1
    verdict = "within" if abs(error) <= within else "missed"
    return _row(what, unit, measured, predicted=predicted, error=error, within=within, verdict=verdict)


def points_row(
    what: str, measured: float, predicted: float, *, low: float, high: float, within: float
) -> dict[str, Any]:
    """Of shares in percent. Within is also a measurement inside the interval `low` to `high` of the prediction."""
    error = predicted - measured
    verdict = "within" if abs(error) <= within or low <= measured <= high else "missed"
    found = _row(what, "points", measured, predicted=predicted, error=error, within=within, verdict=verdict)
    return found | {"low": low, "high": high}


def _row(what: str, unit: str, measured: float, **found: Any) -> dict[str, Any]:
    missing = dict.fromkeys(("fitted", "predicted", "error", "within"))
    return {"what": what, "unit": unit, "measured": measured, **missing, **found}
