"""The sections about lengths of histories and candidates: distribution, drift, files, longest rows."""

from collections.abc import Iterator

import numpy as np

from freescale_tools.profile.page import length_figures as figures
from freescale_tools.report.blocks import Block, Document, Plot, Section, Table
from freescale_tools.report.numbers import count, dated, dated_spans, many, moment, percent, short, times

MOST_DRAWN = 8  # sequences with plots of their own; all are in the tables
MOST_NAMED = 400
_QUANTILES = ("p01", "p05", "p25", "p50", "p75", "p90", "p95", "p99", "p999")
_QUANTILE_NAMES = ("P1", "P5", "P25", "median", "P75", "P90", "P95", "P99", "P99.9")


def length_sections(sequences: Document, candidates: Document, advice: Document | None) -> Iterator[Section]:
    """A section with figures of all columns, then a section for each of the first columns."""
    columns = {**sequences, **candidates}
    if not columns:
        return
    yield _overview(columns, candidates)
    for place, (name, sequence) in enumerate(list(columns.items())[:MOST_DRAWN]):
        # The advice is about the first sequence.
        blocks = tuple(_blocks(sequence, advice if place == 0 and name in sequences else None))
        if blocks:
            yield Section(id=f"lengths-{place}", title=f"Lengths of {short(name)}", blocks=blocks)


def _overview(columns: Document, candidates: Document) -> Section:
    shown = list(columns.items())[:MOST_NAMED]
    blocks = [
        Table(
            title="Rows and events",
            columns=(
                "Column",
                "Rows",
                "Events",
                "Mean length",
                "Longest",
                "Empty rows",
                "Null rows",
                "Null events",
                "Held by the longest 1 %",
            ),
            rows=[
                (
                    short(name) + (" (candidates)" if name in candidates else ""),
                    *(count(one[key]) for key in ("rows", "events", "mean", "max", "empty", "null", "null_elements")),
                    percent(one["top1_share"]),
                )
                for name, one in shown
            ],
            note=f"{count(len(columns) - len(shown))} more columns are in the JSON document."
            if len(columns) > len(shown)
            else "",
        )
    ]
    known = [(name, one["quantiles"]) for name, one in shown if one["quantiles"]]
    if known:
        blocks.append(
            Table(
                title="Quantiles of the length (events)",
                columns=("Column", *_QUANTILE_NAMES),
                rows=[(short(name), *(count(values[key]) for key in _QUANTILES)) for name, values in known],
            )
        )
    intro = "" if known else "A quick profile counts rows and events from footers; it reads no single length."
    return Section(id="lengths", title="Lengths", intro=intro, blocks=blocks)


def _blocks(sequence: Document, advice: Document | None) -> Iterator[Block]:
    if sequence["histogram"] and sequence["events"]:
        yield from _distribution(sequence, advice)
    if sequence["drift"]:
        yield from _drift([step for step in sequence["drift"] if step["rows"]])
    yield from _files(sequence["per_file"])
    if sequence["longest"]:
        yield Table(
            title="The longest rows",
            columns=("File", "Row", "Length (events)"),
            rows=[(short(one["file"]), count(one["row"]), count(one["length"])) for one in sequence["longest"]],
            folded=True,
        )


def _distribution(sequence: Document, advice: Document | None) -> Iterator[Block]:
    quantiles, cut = sequence["quantiles"], advice["max_length"] if advice else None
    if advice and cut >= sequence["max"]:
        cut = None
    empty = f" {count(sequence['empty'])} empty ones are not drawn." if sequence["empty"] else ""
    yield Plot(
        title="Share of rows and of events (%) by length (events)",
        aid=f"Half of the {many(sequence['rows'], 'row')} have at most {count(quantiles['p50'])} events, 95 % at most "
        f"{count(quantiles['p95'])}, the longest has {count(sequence['max'])}.{empty} Areas are shares: where the "
        "dotted line is high, few rows carry most of the work.",
        figure=figures.histogram(sequence, max_length=cut),
        half=True,
    )
    length, above = _half_of_events(sequence["histogram"])
    removed = f" The cut at {count(cut)} leaves out {percent(advice['events_cut'])} of them." if advice and cut else ""
    yield Plot(
        title="Cumulative share of rows and of events (%)",
        aid=f"Half of all events lie in rows of {count(length)} events or more, which are {percent(above)} of the "
        f"rows; the longest 1 % of the rows hold {percent(sequence['top1_share'])}.{removed}",
        figure=figures.distribution(sequence, max_length=cut),
        half=True,
    )


def _half_of_events(histogram: Document) -> tuple[int, float]:
    """The length that holds the middle event, and the share of rows at least that long."""
    lengths, counts = np.asarray(histogram["lengths"], np.int64), np.asarray(histogram["counts"], np.int64)
    upto = (lengths * counts).cumsum()
    middle = int(np.searchsorted(upto, upto[-1] / 2))
    return int(lengths[middle]), float(counts[middle:].sum() / counts.sum())


def _drift(steps: list[Document]) -> Iterator[Block]:
    if len(steps) < 2 or not any(step["mean"] for step in steps):
        return
    first, last = steps[0], steps[-1]
    times_of_rows, _ = dated([step["from"] for step in steps])
    ends = (
        f"from {count(first['mean'])} events ({moment(times_of_rows[0])}) to {count(last['mean'])} "
        f"({moment(times_of_rows[-1])}), P95 from {count(first['p95'])} to {count(last['p95'])}"
    )
    means = [step["mean"] for step in steps if step["mean"]]
    spread = f" The largest mean is {times(max(means) / min(means))} the smallest."
    yield Plot(
        title="Length over time (events)",
        aid=f"Over {count(len(steps))} spans of about equally many rows, the mean goes {ends}.{spread}",
        figure=figures.drift(steps),
    )
    begins, ends_before, unit = dated_spans(shown := figures.thinned(steps))
    yield Table(
        title=f"Lengths over time ({unit})",
        columns=("From", "Before", "Rows", "Mean length", "Median", "P95"),
        rows=[
            (begin, end, *(count(step[key]) for key in ("rows", "mean", "p50", "p95")))
            for begin, end, step in zip(begins, ends_before, shown, strict=True)
        ],
        words=2,
        folded=True,
    )


def _files(files: list[Document]) -> Iterator[Block]:
    filled = [one for one in files if one["rows"]]
    if len(filled) < 2:
        return
    ordered = sorted(filled, key=lambda one: one["mean"])
    least, most = ordered[0], ordered[-1]
    ratio = f", {times(most['mean'] / least['mean'])} as many" if most["mean"] > 1.1 * least["mean"] > 0 else ""
    yield Plot(
        title="Mean length by file (events)",
        aid=f"The mean length of the {count(len(filled))} files goes from {count(least['mean'])} events in "
        f"{short(least['file'])} to {count(most['mean'])} in {short(most['file'])}{ratio}.",
        figure=figures.per_file(filled),
        height=280,
    )
    ends = ordered if len(ordered) <= 10 else [*ordered[:5], *ordered[-5:]]
    yield Table(
        title="Files with the shortest and the longest rows",
        columns=("File", "Rows", "Events", "Mean length"),
        rows=[(short(one["file"]), count(one["rows"]), count(one["events"]), count(one["mean"])) for one in ends],
        folded=True,
    )
