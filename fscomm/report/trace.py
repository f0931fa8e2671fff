"""Spans of time on named tracks, and the JSON that chrome://tracing and ui.perfetto.dev show.

One process per rank, one track per track. Spans of one step are joined by a flow, in the order in which they began.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from `start` to `end`, in seconds since the epoch, on one thread."""

    kind: str
    track: str
    start: float
    end: float
    step: int | None = None
    module: str = ""
    blocked: bool = False
    """The training thread waited here."""


def trace_events(spans: Iterable[Span], *, rank: int) -> list[dict[str, Any]]:
    """Events of the Trace Event Format, times in microseconds since the epoch: names, then slices, then flows."""
    ordered = sorted(spans, key=lambda span: (span.start, -span.end))
    tracks: dict[str, int] = {}
    for span in ordered:
        tracks.setdefault(span.track, len(tracks))
    named = [_name("process_name", f"rank {rank}", rank=rank)]
    named += [_name("thread_name", track, rank=rank, track=number) for track, number in tracks.items()]
    slices = [_slice(span, rank=rank, track=tracks[span.track]) for span in ordered]
    by_step: dict[int, list[Span]] = {}
    for span in ordered:
        if span.step is not None:
            by_step.setdefault(span.step, []).append(span)
    flows = [event for step, chain in by_step.items() for event in _flow(step, chain, rank=rank, tracks=tracks)]
    return [*named, *slices, *flows]


def write_trace(path: str | Path, spans: Iterable[Span], *, rank: int) -> None:
    """Write `trace_events` as a JSON object. Files of several ranks can be joined by their lists `traceEvents`."""
    document = {"displayTimeUnit": "ms", "traceEvents": trace_events(spans, rank=rank)}
    Path(path).write_text(json.dumps(document))


def _name(what: str, name: str, *, rank: int, track: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": track, "args": {"name": name}}


def _slice(span: Span, *, rank: int, track: int) -> dict[str, Any]:
    args = {"step": span.step, "module": span.module}
    return {
        "ph": "X",
        "name": f"wait: {span.kind}" if span.blocked else span.kind,
        "cat": "exposed" if span.blocked else "communication",
        "pid": rank,
        "tid": track,
        "ts": span.start * 1e6,
        "dur": (span.end - span.start) * 1e6,
        "args": {key: value for key, value in args.items() if value not in (None, "")},
    }


def _flow(step: int, chain: Sequence[Span], *, rank: int, tracks: dict[str, int]) -> list[dict[str, Any]]:
    """Arrows through `chain`; a single span has none."""
    if len(chain) < 2:
        return []
    return [
        {
            "ph": "s" if i == 0 else "f" if i == len(chain) - 1 else "t",
            "bp": "e",  # bind to the slice around this instant, not to the next one
            "name": f"step {step}",
            "cat": "step",
            "id": f"{rank}.{step}",
            "pid": rank,
            "tid": tracks[span.track],
            "ts": span.start * 1e6,
        }
        for i, span in enumerate(chain)
    ]
