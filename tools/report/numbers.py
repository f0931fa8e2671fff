"""Writes figures for the page: thousands separators, three digits, units."""

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")
_LONGEST_NAME = 160
_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_FIRST_DATE, _LAST_DATE = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC).timestamp() for year in (1990, 2100))


def count(value: float | None) -> str:
    """`1,234,567`; below 100 fractions keep three digits; a dash for None."""
    if value is None:
        return "–"
    if value != int(value) and abs(value) < 100:
        return f"{value:,.3g}"
    return f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share of 0 to 1 as `12.3 %`, with three digits; a dash for None."""
    if share is None:
        return "–"
    value = 100 * share
    if value == 0:
        return "0\u00a0%"
    size = abs(value)
    if size < 0.001:
        return "<\u00a00.001\u00a0%"
    digits = 1 if size >= 10 else 2 if size >= 0.1 else 3
    return f"{'−' if value < 0 else ''}{size:,.{digits}f}\u00a0%"


def decimals(error: float | None) -> int | None:
    """How many decimals of a percentage its standard error, a share, allows; None if no error is known."""
    return max(-math.floor(math.log10(100 * error)), 0) if error else None


def percent_within(share: float | None, error: float | None) -> str:
    """A share as `percent` gives it, without digits that are smaller than its standard error."""
    plain, allowed = percent(share), decimals(error)
    written = re.search(r"\.(\d+)", plain)
    if share is None or allowed is None or written is None or len(written[1]) <= allowed:
        return plain
    least = 10.0**-allowed
    if 0 < 100 * abs(share) < least / 2:
        return f"<\u00a0{least:g}\u00a0%"
    return f"{'−' if share < 0 else ''}{100 * abs(share):,.{allowed}f}\u00a0%"


def signed(share: float | None) -> str:
    """A simulated gain as `+12 %`: whole percents, since simulations are not better than that."""
    if share is None:
        return "–"
    whole = round(100 * share)
    return f"{'+' if whole > 0 else '−' if whole < 0 else ''}{abs(whole):,}\u00a0%"


def milliseconds(value: float | None) -> str:
    """`12.3 ms`."""
    return "–" if value is None else f"{number(value)}\u00a0ms"


def number(value: float | None) -> str:
    """Three digits or more, never an exponent: `0.123`, `12.3`, `1,235`."""
    if value is None:
        return "–"
    size = abs(value)
    digits = 0 if size >= 100 or value == 0 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def size(bytes: float | None) -> str:
    """`12.3 MB`, in powers of 1,000."""
    if bytes is None:
        return "–"
    step = 0
    while abs(bytes) >= 1000 and step < len(_SIZES) - 1:
        bytes, step = bytes / 1000, step + 1
    return f"{count(bytes) if step == 0 else number(bytes)}\u00a0{_SIZES[step]}"


def times(ratio: float) -> str:
    """`9.2 times`; above 1,000 without fractions."""
    return f"{ratio:,.0f} times" if ratio >= 20 else f"{ratio:,.1f} times"


def many(number: int, thing: str) -> str:
    """`1 file`, `1,234 files`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def cost(model: str) -> str:
    """The formula of one of fsdata's cost models, from its `repr`; L is a length.

    Other texts stay as they are.
    """
    if power := re.fullmatch(r"Power\(alpha=([0-9.]+)\)", model):
        exponent = f"{float(power[1]):g}"
        return {"1": "L", "2": "L²"}.get(exponent, f"L^{exponent}")
    given = re.fullmatch(r"Polynomial\(linear=(\d+), quadratic=(\d+), candidate=(\d+)\)", model)
    if not given:
        return short(model)
    factors = zip(given.groups(), ("L", "L²", "candidates"), strict=True)
    terms = ((int(factor), name) for factor, name in factors)
    return " + ".join(name if factor == 1 else f"{factor:,}·{name}" for factor, name in terms if factor)


def moment(label: object) -> str:
    """A time as the data has it, in whole seconds, without a midnight and without the `T`."""
    return re.sub(r"(:\d\d)\.\d+$", r"\1", short(label)).removesuffix("T00:00:00").replace("T", " ")


def dated(labels: Sequence[int | str]) -> tuple[list[int | str], str]:
    """(times as dates, how to read them).

    Integers are taken as time since 1970, in the first unit that puts all of them between 1990 and 2100. If
    no unit does, they stay integers.
    """
    whole = [label for label in labels if isinstance(label, int)]
    if len(whole) < len(labels):
        return list(labels), "date"
    for unit, per_second in _UNITS.items():
        seconds = [value / per_second for value in whole]
        if all(_FIRST_DATE <= value < _LAST_DATE for value in seconds):
            dates = [datetime.datetime.fromtimestamp(value, datetime.UTC).replace(tzinfo=None) for value in seconds]
            return [date.isoformat() for date in dates], f"UTC, from {unit} since 1970"
    return list(whole), "in the unit of the column"


def dated_spans(spans: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str], str]:
    """(first times, times before which spans end, how to read them) of spans with `from` and `to`."""
    times, unit = dated([one[end] for end in ("from", "to") for one in spans])
    texts = [moment(time) for time in times]
    return texts[: len(spans)], texts[len(spans) :], unit


def short(name: object) -> str:
    """A name or reason from the data. A text too long for a table loses its middle."""
    text = str(name)
    if len(text) <= _LONGEST_NAME:
        return text
    half = _LONGEST_NAME // 2
    return f"{text[:half]} … {text[-half:]}"


def label(name: object) -> str:
    """A name from the data for use inside a plot. Plotly would read `<b>` as a tag and `%{x}` as a field."""
    return escape(short(name), quote=False).replace("%{", "% {")
