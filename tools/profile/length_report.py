"""The sections of a profile about lengths of histories and candidates: distribution and drift."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from freescale_tools.report import numbers as n
from freescale_tools.report import plots
from freescale_tools.report.blocks import Block, Column, Document, Look, Plot, Section, Table
from freescale_tools.report.plots import Axis

MOST_POINTS = 400
_BINS = 60
_MOST_DRAWN = 8  # columns with sections of their own; all are in the tables
_MOST_NAMED = 400
_QUANTILES = {
    "p01": "P1", "p05": "P5", "p25": "P25", "p50": "median", "p75": "P75", "p90": "P90", "p95": "P95", "p99": "P99",
    "p999": "P99.9",
}  # fmt: skip
_LENGTH = "length of a row (events)"


def length_sections(sequences: Document, candidates: Document, advice: Document | None) -> Iterator[Section]:
    """A section with figures of all columns, then a section for each of the first columns."""
    columns = {**sequences, **candidates}
    yield _overview(columns, candidates)
    for place, (name, found) in enumerate(list(columns.items())[:_MOST_DRAWN]):
        first = place == 0
        # The advice is about the first sequence.
        cut = advice if advice and first and advice["max_length"] < found["max"] else None
        blocks: list[Block] = []
        if found["histogram"] and found["events"]:
            blocks += _distribution(found, cut)
        blocks += _drift([step for step in found["drift"] or () if step["rows"]], on_terminal=first)
        if blocks:
            yield Section(id=f"lengths-{place}", title=f"Lengths of {n.short(name)}", blocks=blocks)


def _overview(columns: Document, candidates: Document) -> Section:
    rows = [
        {**found, "column": n.short(name) + (" (candidates)" if name in candidates else "")}
        for name, found in list(columns.items())[:_MOST_NAMED]
    ]
    unsure = sum(row.get("row_groups_without_statistics", 0) for row in rows)
    notes = []
    if len(columns) > len(rows):
        notes.append(f"{n.count(len(columns) - len(rows))} more columns are in the JSON document.")
    if unsure:
        notes.append(
            f"{n.count(unsure)} row groups have no statistics: there each empty or null list counts as an event, and "
            "events and means are upper bounds."
        )
    column = Column("column", n.TEXT, "column")
    counted = (
        Column("rows", n.COUNT, "rows"),
        Column("events", n.COUNT, "events"),
        Column("mean", n.COUNT, "mean"),
        Column("longest", n.COUNT, "max"),
        Column("empty rows", n.COUNT, "empty"),
        Column("null rows", n.COUNT, "null"),
        Column("null events", n.COUNT, "null_elements"),
        Column("longest 1 % hold", n.Kind(n.percent), "top1_share"),
    )
    blocks = [Table(title="Rows and events", columns=(column, *counted), rows=rows, notes=notes)]
    known = [row for row in rows if row["quantiles"]]
    if known:
        quantiles = (Column(heading, n.COUNT, f"quantiles.{key}") for key, heading in _QUANTILES.items())
        blocks.append(Table(title="Quantiles of the length (events)", columns=(column, *quantiles), rows=known))
    intro = "" if known else "A quick profile counts rows and events from footers; it reads no single length."
    return Section(id="lengths", title="Lengths", intro=intro, blocks=blocks)


def log_bins(
    lengths: np.ndarray, counts: np.ndarray, *, bins: int = _BINS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges int64[E + 1], rows int64[E] and events int64[E] of about `bins` equally wide bins of log(length).

    Empty histories are left out, because a log axis cannot show them.
    """
    lengths, counts = np.asarray(lengths, np.int64), np.asarray(counts, np.int64)
    counts, lengths = counts[lengths > 0], lengths[lengths > 0]
    edges = np.unique(np.rint(np.geomspace(1, lengths.max(initial=1) + 1, bins + 1)).astype(np.int64))
    place = np.searchsorted(edges, lengths, side="right") - 1
    rows, events = np.zeros(len(edges) - 1, np.int64), np.zeros(len(edges) - 1, np.int64)
    np.add.at(rows, place, counts)
    np.add.at(events, place, counts * lengths)
    return edges, rows, events


def _distribution(found: Document, cut: Document | None) -> Iterator[Block]:
    """Rows and events per doubling of the length, so that areas are shares; and both added up."""
    lengths, counts = (np.asarray(found["histogram"][key], np.int64) for key in ("lengths", "counts"))
    at, removed = None, ""
    if cut:
        at = cut["max_length"]
        removed = f" The cut at {n.count(at)} leaves out {n.percent(cut['events_cut'])} of them."

    def drawn(length: str, at_length: np.ndarray, shares: Iterable[Iterable[float]], y: str) -> Any:
        """A figure of the shares of rows and of events; `length`: how a length is said beside the pointer."""
        columns = (
            Column("length", n.Kind(lambda value: f"{length} {value:,} events"), 0),
            Column("rows", n.SHARE, 1, look=Look(color=plots.BLUE, filled=True)),
            Column("events", n.SHARE, 2, look=Look(color=plots.AMBER, dash="dot")),
        )
        rows = list(zip(at_length.tolist(), *shares, strict=True))
        return plots.lines(rows, columns, x=Axis(_LENGTH, "log"), y=Axis(y), steps=True, cut=at)

    edges, *binned = log_bins(lengths, counts)
    heights = [[*(held / max(held.sum(), 1) / np.diff(np.log2(edges))).tolist(), 0.0] for held in binned]
    without = f" {n.count(found['empty'])} empty ones are not drawn." if found["empty"] else ""
    quantiles = found["quantiles"]
    yield Plot(
        title="Share of rows and of events (%) by length (events)",
        aid=f"Half of the {n.many(found['rows'], 'row')} have at most {n.count(quantiles['p50'])} events, 95 % at most "
        f"{n.count(quantiles['p95'])}, the longest has {n.count(found['max'])}.{without} Areas are shares: where the "
        "dotted line is high, few rows carry most of the work.",
        figure=drawn("from", edges, heights, "share per doubling of length (%)"),
        half=True,
    )
    edges, rows, events = log_bins(lengths, counts, bins=4 * _BINS)
    empty = int(counts[lengths == 0].sum())
    added = ((empty + rows.cumsum()) / max(empty + rows.sum(), 1), events.cumsum() / max(events.sum(), 1))
    up_to = (lengths * counts).cumsum()
    middle = int(np.searchsorted(up_to, up_to[-1] / 2))
    yield Plot(
        title="Cumulative share of rows and of events (%)",
        aid=f"Half of all events lie in rows of {n.count(lengths[middle])} events or more, which are "
        f"{n.percent(counts[middle:].sum() / counts.sum())} of the rows; the longest 1 % of the rows hold "
        f"{n.percent(found['top1_share'])}.{removed}",
        figure=drawn("up to", edges[1:] - 1, [one.tolist() for one in added], "share up to this length (%)"),
        half=True,
    )


def _drift(steps: list[Document], *, on_terminal: bool) -> Iterator[Block]:
    if len(steps) < 2 or not any(step["mean"] for step in steps):
        return
    spans, unit = n.dated_spans(thinned(steps))
    first, last = spans[0], spans[-1]
    means = [step["mean"] for step in steps if step["mean"]]
    table = Table(
        title=f"Lengths over time ({unit})",
        columns=(
            Column("from", n.TIME, "from"),
            Column("before", n.TIME, "to"),
            Column("rows", n.COUNT, "rows"),
            Column("mean length", n.COUNT, "mean", look=Look(color=plots.BLUE, symbol="circle")),
            Column("median", n.COUNT, "p50", look=Look(color=plots.GREEN, dash="dot", symbol="diamond")),
            Column("P95", n.COUNT, "p95", look=Look(color=plots.AMBER, dash="dash", symbol="square")),
        ),
        rows=spans,
    )
    yield Plot(
        title="Length over time (events)",
        aid=f"Over {n.count(len(steps))} spans of about equally many rows, the mean goes from {n.count(first['mean'])} "
        f"events ({n.moment(first['from'])}) to {n.count(last['mean'])} ({n.moment(last['from'])}), P95 from "
        f"{n.count(first['p95'])} to {n.count(last['p95'])}. The largest mean is {n.times(max(means) / min(means))} "
        "the smallest.",
        figure=plots.lines(spans, table.columns, x=Axis(f"time of the rows ({unit})", "date"), y=Axis(_LENGTH, "log")),
        table=table,
        on_terminal=on_terminal,
    )


def thinned(values: Sequence[Any]) -> Sequence[Any]:
    """At most MOST_POINTS of them, evenly spread, the first and the last among them."""
    if len(values) <= MOST_POINTS:
        return values
    return [values[place] for place in np.linspace(0, len(values) - 1, MOST_POINTS).round().astype(int)]
