"""How figures, names and times are written, the same on the terminal and on a page.

A `Kind` stands for the values of a column or an axis: blocks hold raw values, a renderer writes them by their kind.
"""

import datetime
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

NOTHING = "–"
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")
_LONGEST_NAME = 160
_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_FIRST_DATE, _LAST_DATE = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC).timestamp() for year in (1990, 2100))


def count(value: float | None) -> str:
    """`1,234,567`; below 100 fractions keep three digits; a dash for None."""
    if value is None:
        return NOTHING
    if value != int(value) and abs(value) < 100:
        return f"{value:,.3g}"
    return f"{value:,.0f}"


def number(value: float | None) -> str:
    """Three digits or more, never an exponent: `0.00123`, `12.3`, `1,235`."""
    if value is None:
        return NOTHING
    if abs(value) < 5e-10:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(digits, 0), 9)}f}"


def percent(share: float | None, error: float | None = None) -> str:
    """A share of 0 to 1 as `12.3 %`, with three digits, but none that is smaller than the standard error of the share.

    The space does not break. A dash for None.
    """
    if share is None:
        return NOTHING
    size = abs(100 * share)
    if size == 0:
        return "0\u00a0%"
    shown = 1 if size >= 10 else 2 if size >= 0.1 else 3
    digits = min(shown, max(-math.floor(math.log10(100 * error)), 0)) if error else shown
    least = 10.0**-digits
    if size < (least / 2 if digits < shown else least):
        return f"<\u00a0{least:g}\u00a0%"
    return f"{'−' if share < 0 else ''}{size:,.{digits}f}\u00a0%"


def signed(share: float | None) -> str:
    """A simulated gain as `+12 %`: whole percents, since simulations are not better than that."""
    if share is None:
        return NOTHING
    whole = round(100 * share)
    return f"{'+' if whole > 0 else '−' if whole < 0 else ''}{abs(whole):,}\u00a0%"


def milliseconds(value: float | None) -> str:
    """`12.3 ms`."""
    if value is None:
        return NOTHING
    return "<\u00a00.001\u00a0ms" if 0 < value < 0.001 else f"{number(value)}\u00a0ms"


def size(bytes: float | None) -> str:
    """`12.3 MB`, in powers of 1,000."""
    if bytes is None:
        return NOTHING
    step = 0
    while abs(bytes) >= 1000 and step < len(_SIZES) - 1:
        bytes, step = bytes / 1000, step + 1
    return f"{count(bytes) if step == 0 else number(bytes)}\u00a0{_SIZES[step]}"


def times(ratio: float) -> str:
    """`9.2 times`; from 20 on without fractions."""
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
    given = re.fullmatch(r"Polynomial\(linear=(\d+), quadratic=(\d+), candidate=(\d+)(?:, sample=(\d+))?\)", model)
    if not given:
        return short(model)
    *factors, sample = (int(factor or 0) for factor in given.groups())
    terms = [
        name if factor == 1 else f"{factor:,}·{name}"
        for factor, name in zip(factors, ("L", "L²", "candidates"), strict=True)
        if factor
    ]
    return " + ".join([*terms, *([f"{sample:,}"] if sample else [])])


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


def by_type(value: Any) -> str:
    """Whole numbers as counts, other numbers with four digits, texts as they are."""
    if value is None:
        return NOTHING
    if isinstance(value, str | bool):
        return str(value)
    return f"{value:,.4g}" if value != int(value) and abs(value) < 1e4 else f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of a column or an axis are written.

    Attributes:
        write: a value, without the unit.
        unit: stands in the heading; empty where values carry it themselves.
        words: aligned left, and may be folded.
        share: plots draw its values of 0 to 1 as percents.
    """

    write: Callable[..., str]
    unit: str = ""
    words: bool = False
    share: bool = False


# TEXT is shortened, WORDS are not.
TEXT = Kind(lambda value: NOTHING if value is None else short(value), words=True)
WORDS = Kind(by_type, words=True)
PLAIN = Kind(by_type)
COUNT = Kind(count)
NUMBER = Kind(number)
PERCENTS = Kind(lambda *share: percent(*share).removesuffix("\u00a0%"), share=True)  # under a title with %
SHARE = Kind(PERCENTS.write, unit="%", share=True)
GAIN = Kind(signed)
MS = Kind(lambda value: milliseconds(value).removesuffix("\u00a0ms"), unit="ms")
BYTES = Kind(size)


def moment(label: object) -> str:
    """A time as the data has it, in whole seconds, without a midnight and without the `T`."""
    return re.sub(r"(:\d\d)\.\d+$", r"\1", short(label)).removesuffix("T00:00:00").replace("T", " ")


def dated_spans(spans: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """(spans with `from` and `to` as dates, how to read them).

    Integers are taken as time since 1970, in the first unit that puts all of them between 1990 and 2100. If
    no unit does, they stay integers.
    """
    ends = ("from", "to")
    whole = [one[end] for one in spans for end in ends]
    if not all(isinstance(one, int) for one in whole):
        return [dict(one) for one in spans], "date"

    def dated(seconds: float) -> str:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(tzinfo=None).isoformat()

    for unit, per_second in _UNITS.items():
        if all(_FIRST_DATE <= value / per_second < _LAST_DATE for value in whole):
            dates = [{**one, **{end: dated(one[end] / per_second) for end in ends}} for one in spans]
            return dates, f"UTC, from {unit} since 1970"
    return [dict(one) for one in spans], "in the unit of the column"


TIME = Kind(moment, words=True)
