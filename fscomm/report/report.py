"""What the engine did, step by step: the frozen object that `comm.report()` returns.

A step's communication is *exposed* where the thread that trains was blocked on it, *inline* where that thread did the
work itself, and *hidden* where another thread worked while the training thread did not wait. Times are host times.
Where tables lie on a GPU, exposed is what its compute stream stood still, whether or not the host was blocked, and
hidden what other streams worked beside it.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fscomm.plan.number_of_parts import Tried

VERSION = 1
WARM_UP = "warm-up: nothing was fetched ahead for it yet"
ATOMICS = (
    "equal to the bit where the plain loop repeats: fbgemm adds up rows with more than 1,024 gradients in a call by "
    "atomics, in any order. To compare bits, torch.use_deterministic_algorithms(True) in both loops"
)


class _Summed:
    """Counts that are added field by field; those of a dict, key by key."""

    __slots__: tuple[str, ...] = ()

    def __add__(self, other: Self) -> Self:
        return type(self)(**{name: _added(getattr(self, name), getattr(other, name)) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Collisions(_Summed):
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
        return _share(self.colliding, self.occurrences)

    @property
    def unique_rate(self) -> float:
        """Share of distinct rows that collide; 0 if there are none."""
        return _share(self.unique_colliding, self.unique)


@dataclass(frozen=True, slots=True, kw_only=True)
class Managed(_Summed):
    """Of the ids of a table behind managed collision that this rank owns.

    Attributes:
        ids: occurrences.
        hits: of those, whose id had a row of its own before the batch. own: whose id has one after it.
        late: whose row had another id before the batch: it is not fetched ahead.
        inserted, evicted: rows that were free and got an id; rows that got another one.
    """

    ids: int = 0
    hits: int = 0
    own: int = 0
    late: int = 0
    inserted: int = 0
    evicted: int = 0

    @property
    def hit_rate(self) -> float:
        """0 without any ids, as the other shares are."""
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
    """Bytes of one kind that this rank sent to others and received from them."""

    sent: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwards(_Summed):
    """Of one module, or of several: forwards in training.

    Attributes:
        served, ids, nbytes: forwards that were served, their ids, and the bytes of the rows or bags they gave.
        plain: forwards that ran plainly, by reason.
        plain_ids, plain_bytes: of those.
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
    """One step, or the sum of all (`Report.total`); times in ms by kind."""

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
    """Waiting for a rank that came later; within the exposed time."""

    @property
    def kinds(self) -> list[str]:
        """Every kind of which this step has times or bytes, sorted."""
        sent = {kind for by_kind in self.bytes.values() for kind in by_kind}
        return sorted({*self.exposed_ms, *self.inline_ms, *self.hidden_ms, *sent})

    def traffic(self, kind: str) -> Traffic:
        """Bytes of `kind` over all modules."""
        return sum((by_kind.get(kind, Traffic()) for by_kind in self.bytes.values()), Traffic())


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one rank's recorder knows. `str()` says what was served, and is a table of the means per step."""

    rank: int
    num_steps: int
    """Steps that `total` sums; `steps` keeps only the last of them."""
    total: StepReport
    steps: tuple[StepReport, ...] = ()
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    """Why a module runs plainly, by its path."""
    forwards: Mapping[str, Forwards] = field(default_factory=dict)
    """What was served and what ran plainly in training, by module path."""
    transport: str | None = None
    """How rows travel; None where nothing is served."""
    not_repeated: str | None = None
    """What keeps the plain loop on CUDA from repeating itself, if anything does: there are no bits to be equal to."""
    buffer_bytes: int = 0
    """The most that the buffers of two steps take, in which rows of this rank's batches are received."""
    parts: int | None = 1
    """In how many parts steps are computed; None while that is still measured."""
    tried: tuple[Tried, ...] = ()
    """What was measured to choose `parts`; the same on all ranks. Empty where a number was given."""
    one_part: str | None = None
    """Why steps are not computed in parts, where several numbers were given."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and strings, for JSON."""
        found = dataclasses.asdict(self)
        tried = [each._asdict() for each in self.tried]
        return {"version": VERSION, **found, "steps": list(found["steps"]), "tried": tried}

    def __str__(self) -> str:
        return "\n".join((*self._served(), *self._times(), *self._collisions(), *self._managed(), *self._fallbacks()))

    def parts_line(self) -> str:
        """In how many parts, and what was tried."""
        said = "number of parts still to be chosen" if self.parts is None else f"steps in {_parts(self.parts)}"
        said += f": {self.one_part}" if self.one_part else ""
        tried = (
            f"{_parts(each.parts)} {each.step_ms:.0f} ms a step, {each.exposed_ms:.0f} of it exposed"
            for each in self.tried
        )
        return f"{said}; measured: {', '.join(tried)}" if self.tried else said

    def _served(self) -> list[str]:
        """All, then by module, and what keeps most ids from being served."""
        travels = f", rows by {self.transport}" if self.transport else ""
        title = [f"fscomm, rank {self.rank}, mean of {self.num_steps} steps{travels}"]
        if self.not_repeated:
            title.append(self.not_repeated)
        if self.parts != 1 or self.tried or self.one_part:
            title.append(self.parts_line())
        if not self.forwards:
            return [*title, "no forward in training yet"]
        whole = sum(self.forwards.values(), Forwards())
        told = [
            *title,
            f"served in training: {whole.ids_share:.1%} of the ids, {whole.bytes_share:.1%} of the embedding bytes",
        ]
        for name, one in sorted(self.forwards.items()):
            ran = one.served + sum(one.plain.values())
            told.append(f"  {name or 'the model'}: {one.served} of {ran} forwards, {one.ids_share:.1%} of the ids")
            reasons = sorted(one.plain.items(), key=lambda item: -item[1])
            told += [f"    plainly {count} times: {why}" for why, count in reasons]
        return told

    def _times(self) -> list[str]:
        steps = max(self.num_steps, 1)
        total = self.total
        columns = (total.exposed_ms, total.inline_ms, total.hidden_ms)
        table = [f"{'kind':<30}{'exposed ms':>12}{'inline ms':>12}{'hidden ms':>12}{'sent KB':>12}{'received KB':>13}"]
        for kind in total.kinds:
            times = "".join(f"{times.get(kind, 0.0) / steps:>12.2f}" for times in columns)
            moved = total.traffic(kind)
            table.append(f"{kind:<30}{times}{moved.sent / steps / 1e3:>12.1f}{moved.received / steps / 1e3:>13.1f}")
        table.append(f"{'all':<30}" + "".join(f"{sum(times.values()) / steps:>12.2f}" for times in columns))
        table.append(f"of the exposed time, waiting for a late rank: {total.straggler_ms / steps:.2f} ms")
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


def _added(one: Any, two: Any) -> Any:
    if isinstance(one, dict):
        return {key: one.get(key, 0) + two.get(key, 0) for key in (*one, *two)}
    return one + two


def _parts(number: int) -> str:
    return f"{number} part{'s' if number > 1 else ''}"


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
