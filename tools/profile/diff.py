"""`freescale diff`: what changed between two profiles, or between two runs, and whether that is too much.

Shares change by points (B - A), amounts by their ratio (B / A - 1); lengths by the largest distance of the two
cumulative distributions (Kolmogorov and Smirnov), 0 to 1.
"""

import difflib
import json as codec
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from freescale_tools.console.errors import UsageError
from freescale_tools.console.files import header
from freescale_tools.console.terminal import Terminal

_CONDITION = re.compile(r"\s*(?P<name>[^<>]+?)\s*(?P<sign>[<>])\s*(?P<limit>[-+]?[\d.]+)\s*(?P<percent>%?)\s*")


def diff(
    before: Annotated[Path, typer.Argument(help="profile.json or its folder; or a run.json, or a calibration of it.")],
    after: Annotated[Path, typer.Argument(help="The same of later.")],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            help="A change that is too much, such as 'straggler>2%' or 'item_ids mean<-10%'. May be given several "
            "times; names are those of the table."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Compare two profiles, or two training runs: lengths, collisions, stragglers, costs.

    Shares change by points, amounts by percent, lengths by the largest distance of their distributions (0 to 1). Exit
    status: 1 if a change is more than --fail-if allows or is not known, else 0.
    """
    with Terminal(json=json) as terminal:
        documents = [_read(path) for path in (before, after)]
        kinds = [document["kind"] for document in documents]
        if kinds[0] != kinds[1]:
            raise UsageError(f"{before} is a {kinds[0]} and {after} a {kinds[1]}: compare two of one kind")
        try:
            found = differences(*documents)
        except (KeyError, TypeError) as error:
            raise UsageError(f"{before} or {after} is not whole, {error} is missing: make it again") from error
        limits = conditions(fail_if or [], found)
        rows = [[one.name, _shown(one.before, one), _shown(one.after, one), _unit(one), _change(one)] for one in found]
        terminal.table(f"From {before} to {after}", ["what", "before", "after", "unit", "change"], rows)
        for limit in limits:
            (quantity,) = (one for one in found if one.name == limit.name)
            if quantity.change is None:
                reason = "one of the two lacks it" if None in (quantity.before, quantity.after) else "it was 0 before"
                terminal.finding(f"{limit.name}: how it changed is not known, {reason}: --fail-if '{limit.text}'")
            elif limit.holds(quantity):
                terminal.finding(f"{limit.name} changed by {_change(quantity)}: --fail-if '{limit.text}'")
        terminal.result({
            **header("diff"), "before": str(before), "after": str(after),
            "quantities": [asdict(one) for one in found],
        })  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    """A profile, or the calibration of a run."""
    from freescale_tools.calibrate.calibration import calibrated_run
    from freescale_tools.model.command import read_profile

    file = path / "profile.json" if path.is_dir() else path
    try:
        document = codec.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except ValueError:
        document = None
    if isinstance(document, dict) and document.get("kind") == "profile":
        return read_profile(file)
    return calibrated_run(file)


def _unit(one: Any) -> str:
    return "%" if one.unit == "share" else str(one.unit)


def _shown(value: float | None, one: Any) -> float | None:
    return 100 * value if value is not None and one.unit == "share" else value


def _change(one: Any) -> str:
    if one.change is None:
        return "-"
    if one.unit == "distance":
        return f"{one.change:.3f}"
    return f"{100 * one.change:+.1f} points" if one.unit == "share" else f"{one.change:+.1%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One figure of both documents. `change` is None where it is not known: one of them is missing, or A is 0."""

    name: str
    unit: str
    before: float | None
    after: float | None
    change: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A change that is too much."""

    text: str
    name: str
    above: bool
    limit: float

    def holds(self, quantity: Quantity) -> bool:
        """False where the change is not known."""
        if quantity.change is None:
            return False
        return quantity.change > self.limit if self.above else quantity.change < self.limit


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Quantity]:
    """The quantities of two documents of the same kind, `profile` or `calibrate`."""
    read = {"profile": _of_profile, "calibrate": _of_run}[before["kind"]]
    first, second = (dict(read(document)) for document in (before, after))
    found = [
        _quantity(name, unit, first.get(name, (None, unit))[0], second.get(name, (None, unit))[0])
        for name, unit in {**{n: u for n, (_, u) in first.items()}, **{n: u for n, (_, u) in second.items()}}.items()
    ]
    return [*found, *_drift(before, after)] if before["kind"] == "profile" else found


def conditions(texts: Sequence[str], known: Sequence[Quantity]) -> list[Condition]:
    """Read `name>2%` or `name<-0.05`. Raises UsageError for other texts and for names that no quantity has."""
    names = [quantity.name for quantity in known]
    found = []
    for text in texts:
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise UsageError(f"--fail-if {text!r}: a name, > or < and a change are needed, as in 'straggler>2%'")
        if match["name"] not in names:
            close = difflib.get_close_matches(match["name"], names, n=1)
            meant = f", did you mean {close[0]!r}?" if close else ""
            there = f"there are {', '.join(names)}"
            raise UsageError(f"--fail-if {text!r}: nothing is called {match['name']!r}{meant}; {there}")
        try:
            limit = float(match["limit"]) / (100 if match["percent"] else 1)
        except ValueError:
            raise UsageError(f"--fail-if {text!r}: {match['limit']!r} is no number") from None
        found.append(Condition(text=text.strip(), name=match["name"], above=match["sign"] == ">", limit=limit))
    return found


Figures = Iterator[tuple[str, tuple[float | None, str]]]
"""Name -> value and unit; `share` for those that change by points."""


def _of_profile(document: Mapping[str, Any]) -> Figures:
    from freescale_tools.scan.histogram import LengthHistogram

    for name, sequence in document["sequences"].items():
        histogram = sequence.get("histogram")
        if histogram:
            of = LengthHistogram.from_dict(histogram)
            yield f"{name} rows", (of.rows, "")
            yield f"{name} events", (of.events, "")
            yield f"{name} mean", (of.mean, "events")
            for share in (0.5, 0.95, 0.99):
                yield f"{name} p{100 * share:.0f}", (float(of.quantile(share)), "events")
            yield f"{name} longest", (of.longest, "events")
    advice, collisions = document.get("recommended"), document.get("collisions")
    if advice:
        yield "straggler", (advice["straggler_none"], "share")
        yield "straggler, balanced", (advice["straggler"], "share")
        yield "events cut", (advice["events_cut"], "share")
        yield "max length", (advice["max_length"], "events")
    if collisions:
        (usual,) = (point for point in collisions["points"] if point["axis"] == "default")
        yield "collisions", (usual["by_occurrence"]["mean"], "share")


def _of_run(document: Mapping[str, Any]) -> Figures:
    run = document["run"]
    yield "straggler", (document["measured_straggler"], "share")
    yield "R2", (document["r2"], "share")
    yield "mean sample", (1e3 * sum(document["intervals"]["sample_s"]) / 2, "ms")
    yield "step beside its samples", (1e3 * document["constant_s"], "ms")
    yield "waiting for data", (1e3 * run["data_s"], "ms")
    for kind, seconds in run["exposed_s"].items():
        yield f"exposed {kind}", (1e3 * seconds, "ms")
    yield "events", (run["events"], "")
    for kind, unit in (("lookup", "look-up of a row"), ("update", "update of a row")):
        if run[kind]:
            yield unit, (1e9 * run[kind]["seconds"]["value"], "ns")
    if run["all_to_all"] and run["all_to_all"]["bytes_per_s"]["value"]:
        yield "all-to-all bandwidth", (run["all_to_all"]["bytes_per_s"]["value"] / 1e6, "MB/s")


def _drift(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Quantity]:
    from freescale_tools.scan.histogram import LengthHistogram

    for name in (name for name in before["sequences"] if name in after["sequences"]):
        both = [document["sequences"][name].get("histogram") for document in (before, after)]
        if all(both):
            first, second = (LengthHistogram.from_dict(one) for one in both)
            distance = first.distance(second)
            yield Quantity(name=f"{name} lengths", unit="distance", before=None, after=None, change=distance)


def _quantity(name: str, unit: str, before: float | None, after: float | None) -> Quantity:
    change: float | None = None
    if before is not None and after is not None:
        if unit == "share":
            change = after - before
        elif before:
            change = after / before - 1
        elif after == before:
            change = 0.0
    return Quantity(name=name, unit=unit, before=before, after=after, change=change)
