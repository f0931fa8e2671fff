"""The sections of a profile about lengths of histories and candidates: distribution, drift, files, longest rows."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from freescale_tools.report import plots
from freescale_tools.report.blocks import Block, Column, Document, Look, Plot, Section, Table
from freescale_tools.report.numbers import (
    COUNT,
    SHARE,
    TEXT,
    TIME,
    Kind,
    count,
    dated_spans,
    many,
    moment,
    percent,
    short,
    times,
)  # fmt: skip
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
        # The advice is about the first sequence.
        cut = advice if advice and place == 0 and advice["max_length"] < found["max"] else None
        blocks = tuple(_blocks(found, cut, on_terminal=place == 0))
        if blocks:
            yield Section(id=f"lengths-{place}", title=f"Lengths of {short(name)}", blocks=blocks)


def _overview(columns: Document, candidates: Document) -> Section:
    rows = [
        {**found, "column": short(name) + (" (candidates)" if name in candidates else "")}
        for name, found in list(columns.items())[:_MOST_NAMED]
    ]
    unsure = sum(row.get("row_groups_without_statistics", 0) for row in rows)
    notes = []
    if len(columns) > len(rows):
        notes.append(f"{count(len(columns) - len(rows))} more columns are in the JSON document.")
    if unsure:
        notes.append(
            f"{count(unsure)} row groups have no statistics: there each empty or null list counts as an event, and "
            "events and means are upper bounds."
        )
    column = Column("column", TEXT, "column")
    blocks = [
        Table(
            title="Rows and events",
            columns=(
                column,
                Column("rows", COUNT, "rows"),
                Column("events", COUNT, "events"),
                Column("mean", COUNT, "mean"),
                Column("longest", COUNT, "max"),
                Column("empty rows", COUNT, "empty"),
                Column("null rows", COUNT, "null"),
                Column("null events", COUNT, "null_elements"),
                Column("longest 1 % hold", Kind(percent), "top1_share"),
            ),
            rows=rows,
            notes=notes,
        )
    ]
    known = [row for row in rows if row["quantiles"]]
    if known:
        quantiles = (Column(heading, COUNT, f"quantiles.{key}") for key, heading in _QUANTILES.items())
        blocks.append(Table(title="Quantiles of the length (events)", columns=(column, *quantiles), rows=known))
    intro = "" if known else "A quick profile counts rows and events from footers; it reads no single length."
    return Section(id="lengths", title="Lengths", intro=intro, blocks=blocks)


def _blocks(found: Document, cut: Document | None, *, on_terminal: bool) -> Iterator[Block]:
    if found["histogram"] and found["events"]:
        yield from _distribution(found, cut)
    if found["drift"]:
        yield from _drift([step for step in found["drift"] if step["rows"]], on_terminal=on_terminal)
    yield from _files([one for one in found["per_file"] if one["rows"]])
    if found["longest"]:
        columns = (Column("file", TEXT, "file"), Column("row", COUNT, "row"), Column("events", COUNT, "length"))
        yield Table(title="The longest rows", columns=columns, rows=found["longest"], on_terminal=on_terminal)


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
    columns = (
        Column("rows", SHARE, 1, look=Look(color=plots.BLUE, filled=True)),
        Column("events", SHARE, 2, look=Look(color=plots.AMBER, dash="dot")),
    )
    at, removed = None, ""
    if cut:
        at = cut["max_length"]
        removed = f" The cut at {count(at)} leaves out {percent(cut['events_cut'])} of them."
    edges, *binned = log_bins(lengths, counts)
    heights = [[*(held / max(held.sum(), 1) / np.diff(np.log2(edges))).tolist(), 0.0] for held in binned]
    without = f" {count(found['empty'])} empty ones are not drawn." if found["empty"] else ""
    yield Plot(
        title="Share of rows and of events (%) by length (events)",
        aid=f"Half of the {many(found['rows'], 'row')} have at most {count(found['quantiles']['p50'])} events, 95 % at "
        f"most {count(found['quantiles']['p95'])}, the longest has {count(found['max'])}.{without} Areas are shares: "
        "where the dotted line is high, few rows carry most of the work.",
        figure=plots.lines(
            list(zip(edges.tolist(), *heights, strict=True)),
            Column("length", Kind(lambda least: f"from {least:,} events"), 0),
            columns,
            x=Axis(_LENGTH, "log"),
            y=Axis("share per doubling of length (%)"),
            steps=True,
            cut=at,
        ),
        half=True,
    )
    edges, rows, events = log_bins(lengths, counts, bins=4 * _BINS)
    empty = int(counts[lengths == 0].sum())
    added = ((empty + rows.cumsum()) / max(empty + rows.sum(), 1), events.cumsum() / max(events.sum(), 1))
    up_to = (lengths * counts).cumsum()
    middle = int(np.searchsorted(up_to, up_to[-1] / 2))
    yield Plot(
        title="Cumulative share of rows and of events (%)",
        aid=f"Half of all events lie in rows of {count(lengths[middle])} events or more, which are "
        f"{percent(counts[middle:].sum() / counts.sum())} of the rows; the longest 1 % of the rows hold "
        f"{percent(found['top1_share'])}.{removed}",
        figure=plots.lines(
            list(zip((edges[1:] - 1).tolist(), *(one.tolist() for one in added), strict=True)),
            Column("length", Kind(lambda most: f"up to {most:,} events"), 0),
            columns,
            x=Axis(_LENGTH, "log"),
            y=Axis("share up to this length (%)"),
            steps=True,
            cut=at,
        ),
        half=True,
    )


def _drift(steps: list[Document], *, on_terminal: bool) -> Iterator[Block]:
    if len(steps) < 2 or not any(step["mean"] for step in steps):
        return
    spans, unit = dated_spans(thinned(steps))
    first, last = spans[0], spans[-1]
    means = [step["mean"] for step in steps if step["mean"]]
    table = Table(
        title=f"Lengths over time ({unit})",
        columns=(
            Column("from", TIME, "from"),
            Column("before", TIME, "to"),
            Column("rows", COUNT, "rows"),
            Column("mean length", COUNT, "mean", look=Look(color=plots.BLUE, symbol="circle")),
            Column("median", COUNT, "p50", look=Look(color=plots.GREEN, dash="dot", symbol="diamond")),
            Column("P95", COUNT, "p95", look=Look(color=plots.AMBER, dash="dash", symbol="square")),
        ),
        rows=spans,
    )
    yield Plot(
        title="Length over time (events)",
        aid=f"Over {count(len(steps))} spans of about equally many rows, the mean goes from {count(first['mean'])} "
        f"events ({moment(first['from'])}) to {count(last['mean'])} ({moment(last['from'])}), P95 from "
        f"{count(first['p95'])} to {count(last['p95'])}. The largest mean is {times(max(means) / min(means))} the "
        "smallest.",
        figure=plots.lines(
            spans,
            table.columns[0],
            table.columns,
            x=Axis(f"time of the rows ({unit})", "date"),
            y=Axis(_LENGTH, "log"),
        ),
        table=table,
        on_terminal=on_terminal,
    )


def _files(files: list[Document]) -> Iterator[Block]:
    if len(files) < 2:
        return
    ordered = sorted(files, key=lambda one: one["mean"])
    least, most = ordered[0], ordered[-1]
    ratio = f", {times(most['mean'] / least['mean'])} as many" if most["mean"] > 1.1 * least["mean"] > 0 else ""
    table = Table(
        title="Files with the shortest and the longest rows",
        columns=(
            Column("file", TEXT, "file"),
            Column("rows", COUNT, "rows"),
            Column("events", COUNT, "events"),
            Column("mean length", COUNT, "mean", look=Look(color=plots.BLUE, dash="", symbol="circle")),
        ),
        rows=ordered if len(ordered) <= 10 else [*ordered[:5], *ordered[-5:]],
    )
    yield Plot(
        title="Mean length by file (events)",
        aid=f"The mean length of the {count(len(files))} files goes from {count(least['mean'])} events in "
        f"{short(least['file'])} to {count(most['mean'])} in {short(most['file'])}{ratio}.",
        figure=plots.lines(
            thinned([{**one, "number": number} for number, one in enumerate(files, start=1)]),
            Column("file", Kind(lambda number: files[number - 1]["file"]), "number"),
            table.columns,
            x=Axis("file, in the order of the paths"),
            y=Axis("mean length (events)"),
        ),
        table=table,
        height=280,
        on_terminal=True,
    )


def thinned(values: Sequence[Any]) -> Sequence[Any]:
    """At most MOST_POINTS of them, evenly spread, the first and the last among them."""
    if len(values) <= MOST_POINTS:
        return values
    return [values[place] for place in np.linspace(0, len(values) - 1, MOST_POINTS).round().astype(int)]
