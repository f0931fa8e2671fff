"""Makes one line of a comparison: a fitted or predicted figure beside the measured one.

A line is {what, fitted, predicted, measured, unit, error, within, asked, verdict}. `error` is relative to the
measurement, `within` is the tolerance, `verdict` is "fitted", "within" or "missed".
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
