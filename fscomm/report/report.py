"""What the engine did, step by step: the frozen object that `comm.report()` returns.

A step's communication is *exposed* where the thread that trains was blocked on it, *inline* where that thread did the
work itself, and *hidden* where another thread worked while the training thread did not wait. Times are host times.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fscomm.report.served import Forwards, lines
from fscomm.report.trace import Span, write_trace

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Collisions:
    """Of the rows of one batch that this rank owns, those that the batch before used too."""

    occurrences: int = 0
    colliding: int = 0
    unique: int = 0
    unique_colliding: int = 0

    def __post_init__(self) -> None:
        fits = 0 <= self.unique_colliding <= self.colliding <= self.occurrences
        fits &= self.unique_colliding <= self.unique <= self.occurrences
        if not fits:
            raise ValueError(
                f"{self.unique} rows occur {self.occurrences} times, {self.unique_colliding} of them collide, with "
                f"{self.colliding} occurrences: a part cannot exceed the whole, nor distinct rows their occurrences"
            )

    @property
    def rate(self) -> float:
        """Share of occurrences whose row collides (the paper's rate); 0 if there are none."""
        return self.colliding / self.occurrences if self.occurrences else 0.0

    @property
    def unique_rate(self) -> float:
        """Share of distinct rows that collide; 0 if there are none."""
        return self.unique_colliding / self.unique if self.unique else 0.0

    def __add__(self, other: "Collisions") -> "Collisions":
        return Collisions(
            occurrences=self.occurrences + other.occurrences,
            colliding=self.colliding + other.colliding,
            unique=self.unique + other.unique,
            unique_colliding=self.unique_colliding + other.unique_colliding,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of one kind that this rank sent to others and received from them."""

    sent: int = 0
    received: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(sent=self.sent + other.sent, received=self.received + other.received)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step, or the sum of all (`Report.total`); times in ms by kind.

    `straggler_ms` lies within the exposed time.
    """

    step: int
    collisions: Mapping[str, Collisions] = field(default_factory=dict)
    """By module."""
    bytes: Mapping[str, Mapping[str, Traffic]] = field(default_factory=dict)
    """By module, then by kind."""
    exposed_ms: Mapping[str, float] = field(default_factory=dict)
    inline_ms: Mapping[str, float] = field(default_factory=dict)
    hidden_ms: Mapping[str, float] = field(default_factory=dict)
    straggler_ms: float = 0.0

    @property
    def kinds(self) -> list[str]:
        """Every kind of which this step has times or bytes, sorted."""
        sent = {kind for by_kind in self.bytes.values() for kind in by_kind}
        return sorted({*self.exposed_ms, *self.inline_ms, *self.hidden_ms, *sent})

    def traffic(self, kind: str) -> Traffic:
        """Bytes of `kind` over all modules."""
        return _sum((by_kind.get(kind, Traffic()) for by_kind in self.bytes.values()), Traffic())


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one rank's recorder knows. `str()` is a table of the means per step."""

    rank: int
    num_steps: int
    """Steps that `total` sums; `steps` and `spans` keep only the last of them."""
    total: StepReport
    steps: tuple[StepReport, ...] = ()
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """Why a module runs plainly, by its path."""
    forwards: Mapping[str, Forwards] = field(default_factory=dict)
    """What was served and what ran plainly in training, by module path."""
    transport: str | None = None
    """How rows travel; None where nothing is served."""
    spans: tuple[Span, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and strings, for JSON; without the spans."""
        return {
            "version": VERSION,
            "rank": self.rank,
            "num_steps": self.num_steps,
            "total": dataclasses.asdict(self.total),
            "steps": [dataclasses.asdict(step) for step in self.steps],
            "fallbacks": dict(self.fallbacks),
            "forwards": {name: dataclasses.asdict(each) for name, each in self.forwards.items()},
            "transport": self.transport,
        }

    def save_trace(self, path: str | Path) -> None:
        """Write the kept spans as JSON for chrome://tracing or ui.perfetto.dev: a track per thread, a flow per step."""
        write_trace(path, self.spans, rank=self.rank)

    def __str__(self) -> str:
        parts = (self._title(), *lines(self.forwards), *self._times(), *self._collisions(), *self._fallbacks())
        return "\n".join(parts)

    def _title(self) -> str:
        travels = f", rows by {self.transport}" if self.transport else ""
        return f"fscomm, rank {self.rank}, mean of {self.num_steps} steps{travels}"

    def _times(self) -> list[str]:
        steps = max(self.num_steps, 1)
        table = [
            f"{'kind':<30}{'exposed ms':>12}{'inline ms':>12}{'hidden ms':>12}{'sent KB':>12}{'received KB':>13}",
        ]
        for kind in self.total.kinds:
            times = [times.get(kind, 0.0) for times in (self.total.exposed_ms, self.total.inline_ms)]
            times.append(self.total.hidden_ms.get(kind, 0.0))
            moved = self.total.traffic(kind)
            shown = "".join(f"{time / steps:>12.2f}" for time in times)
            table.append(f"{kind:<30}{shown}{moved.sent / steps / 1e3:>12.1f}{moved.received / steps / 1e3:>13.1f}")
        exposed, inline, hidden = (
            sum(times.values()) / steps for times in (self.total.exposed_ms, self.total.inline_ms, self.total.hidden_ms)
        )
        table.append(f"{'all':<30}{exposed:>12.2f}{inline:>12.2f}{hidden:>12.2f}")
        table.append(f"of the exposed time, waiting for a late rank: {self.total.straggler_ms / steps:.2f} ms")
        return table

    def _collisions(self) -> list[str]:
        steps = max(self.num_steps, 1)
        return [
            f"{module or 'the model'}: {found.rate:.1%} of {found.occurrences / steps:,.0f} ids a step collide, "
            f"{found.unique_rate:.1%} of {found.unique / steps:,.0f} distinct rows"
            for module, found in sorted(self.total.collisions.items())
        ]

    def _fallbacks(self) -> list[str]:
        counted = {why for each in self.forwards.values() for why in each.plain}
        return [
            f"{module or 'the model'} runs plainly: {reason}"
            for module, reason in sorted(self.fallbacks.items())
            if reason not in counted
        ]


def _sum(parts: Iterable[Any], start: Any) -> Any:
    for part in parts:
        start = start + part
    return start
