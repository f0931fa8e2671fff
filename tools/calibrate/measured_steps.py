"""Reads measured steps: a run that a BubbleMeter saved, or a CSV file.

Every error names the file, and the line or the step.
"""

import contextlib
import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.histogram import LengthHistogram

FORM = "length:count;length:count, such as 128:3;256:1 for three samples of 128 events and one of 256"
BY_KIND = ("exposed_s", "passes_s", "rows", "exchanges", "bytes")
_CSV_COLUMNS = ("step", "rank", "seconds", "lengths")
_Found = Iterator[tuple[str, "Step"]]
"""Where it stands, and the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one rank computed in one step."""

    step: int
    rank: int
    seconds: float
    """Forward and backward, without waiting for other ranks."""
    lengths: LengthHistogram
    """Of the samples of its batch."""
    candidates: int = 0
    """Of the whole batch."""
    sequence: str = ""
    """Which lengths of the run these are; "" for a CSV file."""
    data_s: float = 0.0
    """Waiting for the loader."""
    of_kind: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """BY_KIND, none of a CSV file. By kind of exchange: waiting for bytes, how many, bytes that this rank gave to them.
    By part of the model (forward, backward, lookup, update): seconds without waits, ids."""
    transfers: tuple[tuple[str, int, float], ...] = ()
    """(kind, bytes this rank gave, seconds from when the last rank gave its part until the end)."""


def read_steps(path: Path, sequence: str | None = None, *, skip: int = 0) -> list[Step]:
    """Steps in order of step and rank.

    Args:
        path: the JSON that `BubbleMeter.save` writes; or a CSV file with `step,rank,seconds,lengths`, and maybe
            `candidates`.
        sequence: of a run; by default the one with most events. Steps that have no lengths of it, such as the first
            of a pipeline, are left out.
        skip: how many more steps to leave out at the start (warm-up).

    Raises UsageError for any other content.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    read = _run(path, text, sequence) if text.lstrip()[:1] == "{" else _csv(path, text)
    found: dict[tuple[int, int], tuple[str, Step]] = {}
    for where, step in read:
        key = step.step, step.rank
        if key in found:
            raise UsageError(f"{where}: step {key[0]} of rank {key[1]} a second time; first in {found[key][0]}")
        found[key] = where, step
    first = sorted({step for step, _ in found})[:skip]
    return [found[key][1] for key in sorted(found) if key[0] not in first]


def parse_histogram(text: str) -> LengthHistogram:
    """Read a histogram written as `FORM` says. Raises ValueError for other texts."""
    counts: Counter[int] = Counter()
    for part in text.split(";"):
        pair = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", part)
        if pair is None or int(pair[2]) == 0:
            raise ValueError(f"{part.strip()!r} in lengths {text[:60]!r}: needed is {FORM}")
        counts[int(pair[1])] += int(pair[2])
    return LengthHistogram.from_dict({"lengths": sorted(counts), "counts": [counts[one] for one in sorted(counts)]})


def _csv(path: Path, text: str) -> _Found:
    reader = csv.DictReader(text.splitlines())
    header = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
    if missing := [name for name in _CSV_COLUMNS if name not in header]:
        hint = f" ({FORM})" if missing == ["lengths"] else ""
        raise UsageError(
            f"{path}, line 1: no column {', '.join(missing)}{hint}; there are {', '.join(header) or 'none'}"
        )
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        with _faults_at(where):
            step = Step(
                step=_whole("step", row["step"]),
                rank=_whole("rank", row["rank"]),
                seconds=_seconds("seconds", row["seconds"]),
                lengths=parse_histogram(row["lengths"] or ""),
                candidates=_whole("candidates", row["candidates"]) if "candidates" in header else 0,
            )
        yield where, step


def _run(path: Path, text: str, sequence: str | None) -> _Found:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from error
    steps = document.get("steps")
    if document.get("version") not in (1, 2) or not isinstance(steps, list):
        raise UsageError(f"{path}: not the run of a BubbleMeter: write it with meter.save(path)")
    found: list[tuple[str, dict[str, LengthHistogram], dict[str, Any]]] = []
    events: Counter[str] = Counter()
    for number, given in enumerate(steps):
        where = f"{path}, steps[{number}]"
        with _faults_at(where):
            lengths = {name: _histogram(one) for name, one in given.get("lengths", {}).items()}
            times: dict[str, Any] = {
                "step": int(given["step"]),
                "rank": int(given["rank"]),
                "seconds": _seconds("compute_s", given["compute_s"]),
                "data_s": _seconds("data_s", given["data_s"]),
                "of_kind": {
                    name: {kind: float(value) for kind, value in given.get(name, {}).items()} for name in BY_KIND
                },
                "transfers": tuple(
                    (kind, int(size), _seconds("a transfer", seconds))
                    for kind, size, seconds in given.get("transfers", ())
                ),
            }
        found.append((where, lengths, times))
        events.update({name: one.events for name, one in lengths.items()})
    if not events:
        raise UsageError(
            f"{path} holds no lengths: tell the meter how long the samples of a batch are: "
            "meter.watch(loader, lengths=...)"
        )
    name = sequence or events.most_common(1)[0][0]
    if name not in events:
        raise UsageError(f"{path} has no lengths of {name!r}: there are those of {', '.join(sorted(events))}")
    for where, lengths, times in found:
        if name in lengths:
            yield where, Step(lengths=lengths[name], sequence=name, **times)


def _histogram(given: Mapping[str, Any]) -> LengthHistogram:
    if not all(type(number) is int for name in ("lengths", "counts") for number in given[name]):
        raise ValueError("lengths and counts must be whole numbers")
    return LengthHistogram.from_dict(given)


@contextlib.contextmanager
def _faults_at(where: str) -> Iterator[None]:
    """Errors of what stands there name the place."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"{where}: {type(error).__name__}: {error}") from error


def _whole(name: str, given: str | None) -> int:
    text = (given or "").strip()
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}: a whole number of 0 or more is needed")
    return int(text)


def _seconds(name: str, given: Any) -> float:
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{name} is {given!r}: a finite number of 0 or more is needed")
    return seconds
