"""What the engine did in each step: the frozen object that `comm.report()` returns.

The communication of a step is *exposed* while the training thread is blocked by it, *inline* while that thread does the
work itself, and *hidden* (overlapped) while another thread works and the training thread does not wait. Times are taken
on the host. For tables on a GPU, exposed is the time that its compute stream is idle, whether or not the host is
blocked, and hidden the time that other streams work beside it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from fscomm.report.verdict import AGREEMENT, typical, verdict

OnStep = Callable[[dict[str, float]], object]
"""Receives the numbers of a step, by name: see `StepReport.numbers`."""

VERSION = 1
WARM_UP = "warm-up: nothing was fetched ahead for it yet"
_STRAGGLER = "straggler (control word)"
ATOMICS = (
    "equal to the bit where the plain loop repeats: fbgemm adds up rows with more than 1,024 gradients in a call by "
    "atomics, in any order. To compare bits, torch.use_deterministic_algorithms(True) in both loops"
)


class _Summed:
    """Counts that are added field by field; those of a dict, key by key."""

    __slots__: tuple[str, ...] = ()

    def __add__(self, other: Self) -> Self:
        return type(self)(**{name: _added(getattr(self, name), getattr(other, name)) for name in self.__slots__})


class Tried(NamedTuple):
    """Medians over the measured `steps` of one number of parts, of the slowest rank each, in milliseconds."""

    parts: int
    steps: int
    step_ms: float
    exposed_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Collisions(_Summed):
    """Rows of one batch that this rank owns. A row collides if the batch before used it, too."""

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
        return _share(self.colliding, self.occurrences)

    @property
    def unique_rate(self) -> float:
        """Share of distinct rows that collide; 0 if there are none."""
        return _share(self.unique_colliding, self.unique)


@dataclass(frozen=True, slots=True, kw_only=True)
class Managed(_Summed):
    """Ids of a table behind managed collision, on the rank that owns them.

    Attributes:
        ids: occurrences.
        hits: occurrences whose id had a row of its own before the batch. own: whose id has one after the batch.
        late: occurrences whose row belonged to another id before the batch, so that it is not fetched ahead.
        inserted: free rows that were assigned to an id. evicted: rows that were reassigned to another id.
    """

    ids: int = 0
    hits: int = 0
    own: int = 0
    late: int = 0
    inserted: int = 0
    evicted: int = 0

    @property
    def hit_rate(self) -> float:
        """0 without any ids, as are the other shares."""
        return _share(self.hits, self.ids)

    @property
    def own_share(self) -> float:
        """Share of occurrences whose id shares its row with no other id."""
        return _share(self.own, self.ids)

    @property
    def late_share(self) -> float:
        return _share(self.late, self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic(_Summed):
    """Bytes of one kind that this rank sent to other ranks and received from them."""

    sent: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwards(_Summed):
    """Forwards in training, of one module or of several.

    Attributes:
        served, ids, nbytes: number of served forwards, their ids, and the bytes of the rows or bags they returned.
        plain: number of forwards that ran plainly, by reason.
        plain_ids, plain_bytes: the ids of plain forwards, and the bytes of their rows or bags.
    """

    served: int = 0
    ids: int = 0
    nbytes: int = 0
    plain: dict[str, int] = field(default_factory=dict)
    plain_ids: int = 0
    plain_bytes: int = 0

    @property
    def ids_share(self) -> float:
        """Share of the ids that were served; 0 without any."""
        return _share(self.ids, self.ids + self.plain_ids)

    @property
    def bytes_share(self) -> float:
        return _share(self.nbytes, self.nbytes + self.plain_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step, or the sum of all (`Report.total`); times in milliseconds, by kind."""

    step: int
    collisions: dict[str, Collisions] = field(default_factory=dict)
    """By module."""
    managed: dict[str, Managed] = field(default_factory=dict)
    """By table behind managed collision: the path of its module, and its name."""
    bytes: dict[str, dict[str, Traffic]] = field(default_factory=dict)
    """By module, then by kind."""
    exposed_ms: dict[str, float] = field(default_factory=dict)
    inline_ms: dict[str, float] = field(default_factory=dict)
    hidden_ms: dict[str, float] = field(default_factory=dict)
    straggler_ms: float = 0.0
    """Wait for a rank that begins its forward later; part of the exposed time."""
    step_ms: float | None = None
    """From one batch that the loop gets to the next one. None if the step was not timed: it is the last one of its loop
    or had no forward in training."""
    unassigned_ms: dict[str, float] = field(default_factory=dict)
    """Exposed time of waits without a step, such as for a flush, while the loop had this batch. Only the total has them
    in its `exposed_ms`."""

    @property
    def waits(self) -> dict[str, float]:
        """All exposed milliseconds between this batch and the next one, by kind."""
        return _added(self.exposed_ms, self.unassigned_ms)

    @property
    def kinds(self) -> list[str]:
        """Every kind that has times or bytes in this step, sorted."""
        sent = {kind for by_kind in self.bytes.values() for kind in by_kind}
        return sorted({*self.exposed_ms, *self.inline_ms, *self.hidden_ms, *sent})

    def numbers(self) -> dict[str, float]:
        """The step as a flat dict of numbers for logs: a name with "/" is one kind of the sum before it.

        `exposed_ms`, `exposed_ms/KIND`: `waits`. `hidden_ms`, `straggler_ms`, and `step_ms` if the step was timed.
        `sent_bytes`, `received_bytes` and those of each kind, over all modules: between this rank and others.
        `collision_rate`: the share of ids whose row collides, if rows of this rank were used.
        """
        waits = self.waits
        moved = {kind: self.traffic(kind) for kind in self.kinds}
        moved = {kind: traffic for kind, traffic in moved.items() if traffic != Traffic()}
        collisions = sum(self.collisions.values(), Collisions())
        found: dict[str, float] = {"step": self.step}
        if self.step_ms is not None:
            found["step_ms"] = self.step_ms
        found |= {
            "exposed_ms": sum(waits.values()),
            **{f"exposed_ms/{kind}": ms for kind, ms in waits.items()},
            "hidden_ms": sum(self.hidden_ms.values()),
            "straggler_ms": self.straggler_ms,
            "sent_bytes": sum(each.sent for each in moved.values()),
            **{f"sent_bytes/{kind}": each.sent for kind, each in moved.items()},
            "received_bytes": sum(each.received for each in moved.values()),
            **{f"received_bytes/{kind}": each.received for kind, each in moved.items()},
        }
        if collisions.occurrences:
            found["collision_rate"] = collisions.rate
        return found

    def traffic(self, kind: str) -> Traffic:
        """Bytes of `kind` over all modules."""
        return sum((by_kind.get(kind, Traffic()) for by_kind in self.bytes.values()), Traffic())


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The measurements of one rank. `str()` begins with a verdict: what steps wait for, and what to do. Then it has the
    share that was served, and a table of the means per step."""

    rank: int
    num_steps: int
    """Number of steps in `total`; `steps` has only the last ones."""
    total: StepReport
    steps: tuple[StepReport, ...] = ()
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """Why a module runs plainly, by its path."""
    forwards: Mapping[str, Forwards] = field(default_factory=dict)
    """Served and plain forwards in training, by module path."""
    transport: str | None = None
    """How rows are sent; None where nothing is served."""
    not_repeated: str | None = None
    """Why the plain loop on CUDA does not repeat itself bitwise: then no loop is identical to it. None if it does."""
    buffer_bytes: int = 0
    """Peak size of the buffers that receive rows for the batches of this rank, those of two steps."""
    parts: int | None = 1
    """Number of parts of a step; None while that is still being measured."""
    tried: tuple[Tried, ...] = ()
    """The measurements that `parts` was chosen by, the same on all ranks. Empty where a number was given."""
    one_part: str | None = None
    """Why steps are not computed in parts, where several numbers were given."""
    late_ms: Mapping[int, float] = field(default_factory=dict)
    """By rank that began forwards later than all others, how long this rank waited for it."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and strings, for JSON."""
        found = dataclasses.asdict(self)
        tried = [each._asdict() for each in self.tried]
        return {"version": VERSION, **found, "steps": list(found["steps"]), "tried": tried}

    def __str__(self) -> str:
        lines = *self._verdict(), *self._served(), *self._times(), *self._collisions(), *self._managed()
        return "\n".join((*lines, *self._fallbacks()))

    def parts_line(self) -> str:
        """The number of parts, and what was measured to choose it."""
        line = "number of parts still to be chosen" if self.parts is None else f"steps in {_parts(self.parts)}"
        line += f": {self.one_part}" if self.one_part else ""
        tried = (
            f"{_parts(each.parts)} {each.step_ms:.0f} ms a step, {each.exposed_ms:.0f} of it exposed"
            for each in self.tried
        )
        return f"{line}; measured: {', '.join(tried)}" if self.tried else line

    def _verdict(self) -> list[str]:
        plain = self._plain()
        if self.transport is None:
            why = plain[1] if plain else next(iter(self.fallbacks.values()), None)
            return ["nothing is served: no step is timed", *([f"-> {why}"] if why else [])]
        means = typical([(step.step_ms, step.waits) for step in self.steps])
        if means is None:
            return ["no step is timed yet: a step ends when its loop gets the next batch"]
        collisions = sum(self.total.collisions.values(), Collisions())
        more_parts = 'enable(parts="auto")' if self.parts == 1 else "a larger number of parts"
        can_divide = self.parts is not None and self.one_part is None
        most_ms = sum(self.late_ms.values()) / 2
        return verdict(
            means,
            plain=plain,
            collision_rate=collisions.rate,
            transport=self.transport,
            more_parts=more_parts if can_divide else None,
            late=next((rank for rank, ms in self.late_ms.items() if ms > most_ms), None),
        )

    def _plain(self) -> tuple[float, str] | None:
        """The share of the forwards that ran plainly, and the reason of most; None if they did only to warm up."""
        whole = sum(self.forwards.values(), Forwards())
        reasons = {why: count for why, count in whole.plain.items() if why != WARM_UP}
        if not reasons:
            return None
        share = sum(reasons.values()) / (whole.served + sum(whole.plain.values()))
        return share, max(reasons, key=reasons.__getitem__)

    def _served(self) -> list[str]:
        """Over all modules, then by module, with the reasons of plain forwards."""
        travels = f", rows by {self.transport}" if self.transport else ""
        lines = [f"fscomm, rank {self.rank}, mean of {self.num_steps} steps{travels}"]
        if self.not_repeated:
            lines.append(self.not_repeated)
        if self.parts != 1 or self.tried or self.one_part:
            lines.append(self.parts_line())
        if not self.forwards:
            return [*lines, "no forward in training yet"]
        whole = sum(self.forwards.values(), Forwards())
        lines.append(
            f"served in training: {whole.ids_share:.1%} of the ids, {whole.bytes_share:.1%} of the embedding bytes"
        )
        for name, one in sorted(self.forwards.items()):
            ran = one.served + sum(one.plain.values())
            lines.append(f"  {name or 'the model'}: {one.served} of {ran} forwards, {one.ids_share:.1%} of the ids")
            reasons = sorted(one.plain.items(), key=lambda item: -item[1])
            lines += [f"    plainly {count} times: {why}" for why, count in reasons]
        return lines

    def _times(self) -> list[str]:
        """Means over all steps; median and 95th percentile over those in `steps`."""
        steps = max(self.num_steps, 1)
        total = self.total
        others = (total.inline_ms, total.hidden_ms)
        waits = [step.waits for step in self.steps]
        table = [
            f"{'kind':<28}{'exposed ms':>11}{'median ms':>11}{'P95 ms':>9}{'inline ms':>11}{'hidden ms':>11}"
            f"{'sent KB':>9}{'received KB':>13}"
        ]
        for kind in total.kinds:
            exposed = _spread(total.exposed_ms.get(kind, 0.0) / steps, [each.get(kind, 0.0) for each in waits])
            times = "".join(f"{times.get(kind, 0.0) / steps:>11.2f}" for times in others)
            moved = total.traffic(kind)
            name = _STRAGGLER if kind == AGREEMENT else kind
            table.append(
                f"{name:<28}{exposed}{times}{moved.sent / steps / 1e3:>9.1f}{moved.received / steps / 1e3:>13.1f}"
            )
        exposed = _spread(sum(total.exposed_ms.values()) / steps, [sum(each.values()) for each in waits])
        table.append(f"{'all':<28}{exposed}" + "".join(f"{sum(times.values()) / steps:>11.2f}" for times in others))
        table.append(f"buffers of rows that were fetched ahead: at most {self.buffer_bytes / 1e6:.1f} MB")
        return table

    def _collisions(self) -> list[str]:
        steps = max(self.num_steps, 1)
        return [
            f"{module or 'the model'}: {found.rate:.1%} of {found.occurrences / steps:,.0f} ids a step collide, "
            f"{found.unique_rate:.1%} of {found.unique / steps:,.0f} distinct rows"
            for module, found in sorted(self.total.collisions.items())
        ]

    def _managed(self) -> list[str]:
        steps = max(self.num_steps, 1)
        return [
            f"{table}: {found.hit_rate:.1%} of {found.ids / steps:,.0f} ids a step hit, {found.own_share:.1%} have a "
            f"row of their own; {found.inserted:,} free rows given, {found.evicted:,} taken over: "
            f"{found.late_share:.1%} of the ids wait for such a row in the forward"
            for table, found in sorted(self.total.managed.items())
        ]

    def _fallbacks(self) -> list[str]:
        counted = {why for each in self.forwards.values() for why in each.plain}
        return [
            f"{module or 'the model'} runs plainly: {reason}"
            for module, reason in sorted(self.fallbacks.items())
            if reason not in counted
        ]


def _spread(mean: float, by_step: list[float]) -> str:
    """Three cells of a row: mean, median, 95th percentile."""
    median, p95 = np.percentile(by_step, [50, 95]) if by_step else (0.0, 0.0)
    return f"{mean:>11.2f}{median:>11.2f}{p95:>9.2f}"


def _added(one: Any, two: Any) -> Any:
    if isinstance(one, dict):
        return {key: one.get(key, 0) + two.get(key, 0) for key in (*one, *two)}
    return one + two


def _parts(number: int) -> str:
    return f"{number} part{'s' if number > 1 else ''}"


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
