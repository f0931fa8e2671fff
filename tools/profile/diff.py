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
Figures = Iterator[tuple[str, tuple[float | None, str]]]
"""Name -> value and unit; `share` for those that change by points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One figure of both documents. `change` is None where it is not known: one of them is missing, or A is 0."""

    name: str
    unit: str
    before: float | None
    after: float | None
    change: float | None

    @property
    def said(self) -> str:
        """How it changed."""
        if self.change is None:
            return "-"
        if self.unit == "distance":
            return f"{self.change:.3f}"
        return f"{100 * self.change:+.1f} points" if self.unit == "share" else f"{self.change:+.1%}"

    @property
    def row(self) -> list[Any]:
        """Name, before, after, unit and change; shares as percents."""
        if self.unit != "share":
            return [self.name, self.before, self.after, self.unit, self.said]
        percents = (value and 100 * value for value in (self.before, self.after))
        return [self.name, *percents, "%", self.said]


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
        too_much = too_much_changed(fail_if or [], found)
        columns = ["what", "before", "after", "unit", "change"]
        terminal.table(f"From {before} to {after}", columns, [one.row for one in found])
        for text in too_much:
            terminal.finding(text)
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


def too_much_changed(limits: Sequence[str], found: Sequence[Quantity]) -> list[str]:
    """A sentence for each of the limits, `name>2%` or `name<-0.05`, that a change is beyond, or is not known.

    Raises UsageError for other texts and for names that no quantity has.
    """
    known = {one.name: one for one in found}
    said = []
    for text in limits:
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise UsageError(f"--fail-if {text!r}: a name, > or < and a change are needed, as in 'straggler>2%'")
        name = match["name"]
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f", did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"--fail-if {text!r}: nothing is called {name!r}{meant}; there are {', '.join(known)}")
        try:
            limit = float(match["limit"]) / (100 if match["percent"] else 1)
        except ValueError:
            raise UsageError(f"--fail-if {text!r}: {match['limit']!r} is no number") from None
        one = known[name]
        if one.change is None:
            reason = "one of the two lacks it" if None in (one.before, one.after) else "it was 0 before"
            said.append(f"{name}: how it changed is not known, {reason}: --fail-if '{text.strip()}'")
        elif one.change > limit if match["sign"] == ">" else one.change < limit:
            said.append(f"{name} changed by {one.said}: --fail-if '{text.strip()}'")
    return said


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Quantity]:
    """The quantities of two documents of the same kind, `profile` or `calibrate`."""
    from freescale_tools.scan.histogram import LengthHistogram

    read = {"profile": _of_profile, "calibrate": _of_run}[before["kind"]]
    figures = [dict(read(document)) for document in (before, after)]
    found = []
    for name, (_, unit) in (figures[0] | figures[1]).items():
        first, second = (of.get(name, (None, unit))[0] for of in figures)
        change: float | None = None
        if first is not None and second is not None:
            if unit == "share":
                change = second - first
            elif first:
                change = second / first - 1
            elif second == first:
                change = 0.0
        found.append(Quantity(name=name, unit=unit, before=first, after=second, change=change))
    if before["kind"] == "profile":
        for name in (name for name in before["sequences"] if name in after["sequences"]):
            both = [document["sequences"][name].get("histogram") for document in (before, after)]
            if all(both):
                one, other = map(LengthHistogram.from_dict, both)
                drift = one.distance(other)
                found.append(Quantity(name=f"{name} lengths", unit="distance", before=None, after=None, change=drift))
    return found


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
