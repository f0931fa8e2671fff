"""Reads measured steps from a CSV file or a run that a BubbleMeter saved, and the lengths of their batches.

Every error names the file and, in a CSV file, the line.
"""

import csv
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.histogram import LengthHistogram

FORM = "length:count;length:count, such as 128:3;256:1 for three samples of 128 events and one of 256"
_CSV_COLUMNS = ("step", "rank", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one rank computed in one step.

    Attributes:
        seconds: forward and backward, without waiting for other ranks.
        lengths: of the samples of its batch.
        candidates: of the whole batch.
        sequence: which lengths of the run these are; "" for a file of lengths.
        data_s: waiting for the loader.
        exposed_s, exchanges, bytes: by kind of exchange: waiting for bytes, how many, what this rank gave to them.
        passes_s, rows: by part of the model (forward, backward, lookup, update): seconds without waits; ids.
        transfers: (kind, bytes this rank gave, seconds from when the last rank gave its part until the end).
    """

    step: int
    rank: int
    seconds: float
    lengths: LengthHistogram
    candidates: int = 0
    sequence: str = ""
    data_s: float = 0.0
    exposed_s: Mapping[str, float] = field(default_factory=dict)
    exchanges: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    passes_s: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    transfers: tuple[tuple[str, int, float], ...] = ()


def read_steps(path: Path, lengths: Path | None = None, column: str | None = None) -> list[Step]:
    """Steps in order of step and rank.

    Args:
        path: CSV with `step,rank,seconds` and, without `lengths`, a column `lengths`; maybe a column
            `candidates`. Or the JSON that `BubbleMeter.save` writes.
        lengths: Parquet, CSV or NPY with `step`, `rank` and `column`, one row per sample. The column holds
            the length of a sample, or the list of its events.
        column: by default `length`; without `lengths`, the sequence of the run with most events. Steps that
            have no lengths, such as the first of a pipeline, are left out.

    Raises UsageError for any other content.
    """
    text = _text(path)
    is_run = text.lstrip()[:1] == "{"
    rows = list(_run(path, text) if is_run else _csv(path, text, with_lengths=lengths is None))
    if is_run and lengths is None:
        rows = _with_lengths(path, rows, column)
    seen: dict[tuple[int, int], str] = {}
    for where, row in rows:
        first = seen.setdefault((row["step"], row["rank"]), where)
        if first != where:
            raise UsageError(f"{where}: step {row['step']} of rank {row['rank']} a second time; first in {first}")
    if lengths is not None:
        known = _lengths_of(lengths, column or "length")
        for where, row in rows:
            key = row["step"], row["rank"]
            if key not in known:
                raise UsageError(f"{where}: {lengths} has no lengths of step {key[0]}, rank {key[1]}")
            row["lengths"] = known[key]
    return sorted((Step(**row) for _, row in rows), key=lambda step: (step.step, step.rank))


def parse_histogram(text: str) -> LengthHistogram:
    """Read a histogram written as `FORM` says. Raises ValueError for other texts."""
    counts: dict[int, int] = {}
    for part in text.split(";"):
        length, colon, count = part.partition(":")
        if not (colon and length.strip().isdecimal() and count.strip().isdecimal() and int(count) > 0):
            raise ValueError(f"{part.strip()!r} in lengths {text[:60]!r}: needed is {FORM}")
        counts[int(length)] = counts.get(int(length), 0) + int(count)
    order = sorted(counts)
    return LengthHistogram(lengths=np.array(order), counts=np.array([counts[length] for length in order]))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error


def _csv(path: Path, text: str, *, with_lengths: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.DictReader(text.splitlines())
    header = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    missing = [name for name in (*_CSV_COLUMNS, *(("lengths",) if with_lengths else ())) if name not in header]
    if missing:
        hint = f" ({FORM}), or give --lengths PATH" if missing == ["lengths"] else ""
        raise UsageError(
            f"{path}, line 1: no column {', '.join(missing)}{hint}; there are {', '.join(header) or 'none'}"
        )
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        try:
            yield (
                where,
                {
                    "step": _whole(row, "step"),
                    "rank": _whole(row, "rank"),
                    "seconds": _seconds(row["seconds"]),
                    "candidates": _whole(row, "candidates") if "candidates" in header else 0,
                    "lengths": parse_histogram(row["lengths"] or "") if with_lengths else None,
                },
            )
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from error


def _whole(row: Mapping[str, Any], name: str) -> int:
    text = (row[name] or "").strip()
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}: a whole number of 0 or more is needed")
    return int(text)


def _seconds(given: Any) -> float:
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"seconds is {given!r}: a finite number of 0 or more is needed")
    return seconds


def _run(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from error
    steps = document.get("steps")
    if document.get("version") not in (1, 2) or not isinstance(steps, list):
        raise UsageError(f"{path}: not the run of a BubbleMeter: write it with meter.save(path)")
    for number, step in enumerate(steps):
        where = f"{path}, steps[{number}]"
        try:
            yield where, {
                "step": int(step["step"]), "rank": int(step["rank"]), "seconds": _seconds(step["compute_s"]),
                "data_s": _seconds(step["data_s"]),
                **{name: dict(step.get(name, {})) for name in ("exposed_s", "exchanges", "bytes", "passes_s", "rows")},
                "transfers": tuple((str(kind), int(size), _seconds(s)) for kind, size, s in step.get("transfers", ())),
                "lengths": {str(name): _histogram(one) for name, one in step.get("lengths", {}).items()},
            }  # fmt: skip
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{where}: {type(error).__name__}: {error}") from error


def _histogram(one: Mapping[str, Any]) -> LengthHistogram:
    lengths, counts = (np.asarray(one[name]) for name in ("lengths", "counts"))
    for array in (lengths, counts):
        if array.ndim != 1 or (len(array) and (array.dtype.kind not in "iu" or array.min() < 0)):
            raise ValueError("lengths and counts must be whole numbers of 0 or more")
    if len(lengths) != len(counts):
        raise ValueError(f"{len(lengths)} lengths, but {len(counts)} counts")
    return LengthHistogram(lengths=lengths.astype(np.int64), counts=counts.astype(np.int64))


def _with_lengths(
    path: Path, rows: Sequence[tuple[str, dict[str, Any]]], column: str | None
) -> list[tuple[str, dict[str, Any]]]:
    """The rows that have lengths of one sequence."""
    events: Counter[str] = Counter()
    for _, row in rows:
        for name, histogram in row["lengths"].items():
            events[name] += histogram.events
    if not events:
        raise UsageError(
            f"{path} holds no lengths: give --lengths PATH, or tell the meter how long the samples of a batch are: "
            "meter.watch(loader, lengths=...)"
        )
    name = column or events.most_common(1)[0][0]
    if name not in events:
        raise UsageError(f"{path} has no lengths of {name!r}: there are those of {', '.join(sorted(events))}")
    kept = [(where, row) for where, row in rows if name in row["lengths"]]
    return [(where, {**row, "lengths": row["lengths"][name], "sequence": name}) for where, row in kept]


def _lengths_of(path: Path, column: str) -> dict[tuple[int, int], LengthHistogram]:
    """(step, rank) -> lengths."""
    try:
        steps, ranks, lengths = _columns(path, column)
    except (OSError, ValueError) as error:  # Arrow's errors are of both kinds
        raise UsageError(f"--lengths {path}: {error}") from error
    if len(lengths) and int(lengths.min()) < 0:
        row = int(lengths.argmin())
        raise UsageError(f"--lengths {path}: {column} is {lengths[row]} in row {row}: lengths are 0 or more")
    order = np.lexsort((lengths, ranks, steps))
    steps, ranks, lengths = steps[order], ranks[order], lengths[order]
    starts = np.flatnonzero(np.diff(steps, prepend=steps[:1] - 1) | np.diff(ranks, prepend=ranks[:1] - 1))
    parts = np.split(lengths, starts[1:]) if len(starts) else []
    keys = zip(steps[starts].tolist(), ranks[starts].tolist(), strict=True)
    return {key: LengthHistogram.of(part) for key, part in zip(keys, parts, strict=True)}


def _columns(path: Path, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int64 [samples] each: step, rank, length."""
    if path.suffix == ".npy":
        array = np.load(path, allow_pickle=False)
        if array.dtype.names is not None:
            missing = [name for name in ("step", "rank", column) if name not in array.dtype.names]
            if missing:
                raise ValueError(f"no field {', '.join(missing)}; there are {', '.join(array.dtype.names)}")
            step, rank, length = array["step"], array["rank"], array[column]
        elif array.ndim == 2 and array.shape[1] == 3:
            step, rank, length = array.T
        else:
            raise ValueError(f"{array.dtype}{list(array.shape)}: integers [samples, 3] or fields step, rank, {column}")
        if not all(one.dtype.kind in "iu" for one in (step, rank, length)):
            raise ValueError(f"{array.dtype}: step, rank and {column} are integers")
        return step.astype(np.int64), rank.astype(np.int64), length.astype(np.int64)
    return _table(path, column)


def _table(path: Path, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    import polars as pl

    try:
        frame = pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
    except pl.exceptions.PolarsError as error:
        raise ValueError(str(error)) from error
    missing = [name for name in ("step", "rank", column) if name not in frame.columns]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}; there are {', '.join(frame.columns)}")
    frame = frame.select("step", "rank", column)
    if isinstance(frame.schema[column], pl.List):
        frame = frame.with_columns(pl.col(column).list.len())
    wrong = [f"{name} is {kind}" for name, kind in frame.schema.items() if not kind.is_integer()]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: integers are needed")
    nulls = [name for name, count in zip(frame.columns, frame.null_count().row(0), strict=True) if count]
    if nulls:
        raise ValueError(f"nulls in {', '.join(nulls)}")
    step, rank, length = (frame[name].cast(pl.Int64).to_numpy() for name in frame.columns)
    return step, rank, length
