"""What may differ between a saved state and the run that loads it: `load_state_dict(state, changed=...)`.

Differences that `changed` names are accepted and reported, all others are a StateError. Letters: P sources of the run
that saved the state, S sources of this run.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsdata.errors import StateError
from fsdata.order.mix import Mix
from fsdata.order.mixture import Weights, mixed_by
from fsdata.order.progress import Progress, SegmentState, parsed
from fsranks.errors import shown

CHANGES = ("weights", "sources", "batch_size", "max_length")
_SOURCE = re.compile(r"source (\d+) (.*)")
_LENGTH = re.compile(r"max_length=(\d+|None)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a state is compared with: the run that loads it.

    Attributes:
        fingerprint: that of `Dataset`.
        labels: [S] the names of the sources in messages.
        weights: [S] as given.
        mix: the order of several sources.
        arguments: (number of a source, weight) -> the item "arguments" of its fingerprint, if it had this weight.
        sequences: their names, in the order in which the item "schema" has them.
        schema: (`max_length` of each sequence) -> the item "schema", if the sequences had these.
        segment_of: parses the segment of a state of a followed source; None for other sources.
    """

    fingerprint: dict[str, str]
    labels: Sequence[str]
    weights: Weights
    mix: Mix
    arguments: Callable[[int, float | None], str]
    sequences: Sequence[str]
    schema: Callable[[Sequence[int | None]], str]
    segment_of: Callable[[dict[str, Any]], SegmentState] | None = None

    @property
    def sources(self) -> list[dict[str, str]]:
        """[S] the items of every source."""
        return _by_source(self.fingerprint)


def names_of(changed: str | Collection[str]) -> frozenset[str]:
    """The names in `changed`. ValueError if one is unknown."""
    names = frozenset([changed] if isinstance(changed, str) else changed)
    unknown = sorted(map(repr, names - set(CHANGES)))
    if unknown:
        raise ValueError(
            f"changed names {', '.join(unknown)}: it takes {', '.join(map(repr, CHANGES))}. Everything else has to be "
            "as it was when the state was saved"
        )
    return names


def resumed(
    state: dict[str, Any], run: Run, changed: str | Collection[str] = (), *, batch_size: int | None = None
) -> tuple[Progress, list[str]]:
    """(the position of a state in this run, the accepted differences). batch_size: of this run, if it has one.

    Raises:
        StateError: the state is damaged, has another version, or belongs to a run that differs in more than `changed`
            names.
        ValueError: `changed` has an unknown name.
    """
    names = names_of(changed)
    progress, saved, of_state = parsed(state, run.segment_of)
    weights: Weights | None = of_state.get("weights")
    count = len(_by_source(saved))
    if any(len(each) != count for each in (weights or (None,) * count, *(each for _, each in progress.mixes))):
        raise StateError(f"the state is damaged: {count} sources, weights {weights}, mixes {progress.mixes}")

    now = _matched(_by_source(saved), weights, run)
    found = {
        "max_length": _lengths(saved, run),
        "weights": list(_weights(now, weights, run)),
        "sources": list(_sources(now, saved, run)),
    }
    # 0: the epoch has ended. Within an epoch the row counts of a source that is not given any more would be missing.
    left = int(of_state.get("rows", saved.get("rows", 0))) - progress.passed
    unknown = None in now and not (progress.at_begin or left == 0)
    acceptable = {name for name, texts in found.items() if texts}
    if run.segment_of is not None:
        acceptable -= {"weights", "sources"}
    elif unknown:
        acceptable -= {"sources"}
    accepted = acceptable & names
    different = list(_different(saved, run, found, accepted))
    if different:
        hints = [_would_accept(sorted(acceptable - names))] if acceptable - names else []
        hints += [_LEFT_OUT] if unknown and count != len(run.weights) else []
        hints += [_OLD] if weights is None and "weights" in names else []
        raise StateError(
            "\n".join(
                (
                    "the state belongs to another run; resuming would repeat or miss samples:",
                    *(f"  {text}" for text in different),
                    *hints,
                    "Use the same sources, schema, seed and order, or start a new epoch without the state",
                )
            )
        )
    reported = [text for name in CHANGES if name in accepted for text in found[name]]
    before = of_state.get("batch_size", batch_size)
    if batch_size is not None and before != batch_size:
        reported.append(f"batch_size: saved {before}, now {batch_size}")
    if accepted & {"weights", "sources"}:
        progress = _mixed(progress, now, weights, run, at_end=left == 0)
    return progress, reported


_LEFT_OUT = (
    "A source can be left out between epochs. Within an epoch give it with ParquetSource(weight=0): no further row of "
    "it is read"
)
_OLD = "The state is of a release that saved no weights: they can be changed at the end of its epoch, without the state"


def _would_accept(names: Sequence[str]) -> str:
    given = repr(names[0]) if len(names) == 1 else f"({', '.join(map(repr, names))})"
    return f"load_state_dict(state, changed={given}) accepts the change of {', '.join(names)}"


def _mixed(
    progress: Progress, now: Sequence[int | None], weights: Weights | None, run: Run, *, at_end: bool
) -> Progress:
    """The position in the rows as they are mixed from now on."""
    if progress.at_begin:
        return replace(progress, mixes=())
    if at_end:
        return Progress.start(progress.epoch + 1, len(progress.positions), progress.tuning)

    def renumbered(of_state: Weights) -> Weights:
        found: list[float | None] = [0.0] * len(run.weights)  # a source that is added had no share before
        for number, weight in zip(now, of_state, strict=True):
            assert number is not None
            found[number] = weight
        return tuple(found)

    saved = weights or tuple(None if number is None else run.weights[number] for number in now)
    mixes = tuple((at, renumbered(each)) for at, each in progress.mixes)
    before, after = mixed_by(renumbered(saved), run.mix), mixed_by(run.weights, run.mix)
    progress = replace(progress, mixes=mixes)
    return progress if before == after else progress.mixed(before, after)


def _by_source(fingerprint: dict[str, str]) -> list[dict[str, str]]:
    """The items of every source, in order."""
    found: dict[int, dict[str, str]] = {}
    for item, value in fingerprint.items():
        match = _SOURCE.fullmatch(item)
        if match is not None:
            found.setdefault(int(match[1]), {})[match[2]] = value
    return [found[number] for number in sorted(found)]


def _matched(saved: Sequence[dict[str, str]], weights: Weights | None, run: Run) -> list[int | None]:
    """[P] the number of each source in this run, which has them in the same order; None if it does not have it."""
    found: list[int | None] = []
    sources, first = run.sources, 0
    for number, items in enumerate(saved):
        of_both = {item: value for item, value in items.items() if item != "arguments"}
        for candidate in range(first, len(sources)):
            arguments = sources[candidate]["arguments"]
            if weights is not None:
                arguments = run.arguments(candidate, weights[number])
            if {**of_both, "arguments": arguments} == {**sources[candidate], "arguments": items.get("arguments")}:
                found.append(candidate)
                first = candidate + 1
                break
        else:
            found.append(None)
    return found


def _lengths(fingerprint: dict[str, str], run: Run) -> list[str]:
    """How the schema differs, if only in the `max_length` of sequences; else nothing."""
    old, new = fingerprint.get("schema", ""), run.fingerprint["schema"]
    before, after = _LENGTH.findall(old), _LENGTH.findall(new)
    if old == new or not len(before) == len(after) == len(run.sequences):
        return []
    # Compared as a whole: in the name of a field the pattern would match something else.
    if run.schema([None if length == "None" else int(length) for length in before]) != old:
        return []
    both = zip(run.sequences, before, after, strict=True)
    return [f"max_length of {name}: saved {saved}, now {length}" for name, saved, length in both if saved != length]


def _weights(now: Sequence[int | None], weights: Weights | None, run: Run) -> Iterator[str]:
    for number, saved in zip(now, weights or (), strict=False):
        if number is not None and saved != run.weights[number]:
            yield f"weight of {run.labels[number]}: saved {saved}, now {run.weights[number]}"


def _sources(now: Sequence[int | None], saved: dict[str, str], run: Run) -> Iterator[str]:
    for number, found in enumerate(now):
        if found is None:
            yield f"source {number} of the state is not given: {saved.get(f'source {number} files', 'followed')}"
    for number in sorted(set(range(len(run.labels))) - set(now)):
        yield f"new: {run.labels[number]}"


def _different(saved: dict[str, str], run: Run, found: dict[str, list[str]], accepted: set[str]) -> Iterator[str]:
    """The differences that are not accepted."""
    if found["weights"] and "weights" not in accepted:
        yield from found["weights"]
    # Items of both sides: one that only this run has (an option of a newer release) must be reported, too.
    for item in sorted({**saved, **run.fingerprint}):
        old, new = saved.get(item, "nothing"), run.fingerprint.get(item, "nothing")
        if old == new or (item == "schema" and "max_length" in accepted):
            continue
        # Sources that differ only by their weight are no difference of their own.
        if _SOURCE.fullmatch(item) and ("sources" in accepted or not found["sources"]):
            continue
        if item == "rows" and ("sources" in accepted or (found["weights"] and not found["sources"])):
            continue
        yield f"{item}: saved {shown(old, new)}, now {shown(new, old)}"
