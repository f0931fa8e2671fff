"""The verdict with which a report begins: how much of a step waits for communication, for what, and what to do about
it. Numbers in, sentences out."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

AGREEMENT = "agreement"
"""The exchange of a control word. It takes well under a millisecond: a longer wait is for a rank that is late."""

_PAUSE = 5  # times the median
_SMALL = 0.02  # of a step: waits that are not worth a change
_NAMED = 0.1  # of all waits: a kind below is one of the "other waits"
_MOST_ADVICE = 2  # sentences


class Means(NamedTuple):
    """Over typical steps, in milliseconds; `waits` by kind."""

    step_ms: float
    waits: dict[str, float]


def typical(steps: Sequence[tuple[float | None, Mapping[str, float]]]) -> Means | None:
    """None if no step was timed.

    steps: the milliseconds of each, None if it was not timed, and its waits by kind.
    """
    timed = [(step_ms, waits) for step_ms, waits in steps if step_ms is not None]
    if not timed:
        return None
    # The user gets no batch while it evaluates or saves a checkpoint: in a mean, one such step would hide the waits of
    # all others.
    longest = _PAUSE * statistics.median_low(step_ms for step_ms, _ in timed)
    timed = [(step_ms, waits) for step_ms, waits in timed if step_ms <= longest]
    kinds = {kind for _, waits in timed for kind in waits}
    return Means(
        statistics.fmean(step_ms for step_ms, _ in timed),
        {kind: statistics.fmean(waits.get(kind, 0.0) for _, waits in timed) for kind in sorted(kinds)},
    )


def verdict(
    means: Means,
    *,
    plain: tuple[float, str] | None,
    collision_rate: float,
    transport: str,
    more_parts: str | None,
    late: int | None,
) -> list[str]:
    """A line that says what a step waits for, then at most two that say what to do.

    plain: the share of the forwards that ran plainly, and the reason of most of them. more_parts: what gives a step
    more parts; None where that is not possible. late: the rank that this one waited for most of that time; None if
    there is no such one.
    """
    waited = sum(means.waits.values())
    share = waited / means.step_ms if means.step_ms else 0.0
    line = f"step {_ms(means.step_ms)}; {_ms(waited)} ({100 * share:.0f} %) wait for communication"
    advice = []
    if plain is not None:
        advice.append(
            f"{100 * plain[0]:.0f} % of the forwards ran plainly, and their exchanges are not in these times. Most of "
            f"them: {plain[1]}"
        )
    if share < _SMALL:
        advice.append(
            "nothing to gain on this rank: communication is overlapped. If others wait for a late rank, it may be this "
            "one"
        )
    else:
        words = {
            "rank": "another rank" if late is None else f"rank {late}",
            "collide": f"{100 * collision_rate:.0f} %",
            "or_parts": f", or {more_parts}" if more_parts else "",
            "or_kernels": ", or a transport that uses no SMs (copy-engine, nccl-ce)" if transport == "nccl" else "",
            "remedy": f"{more_parts} overlaps most of their rows" if more_parts else "shuffle over more samples",
        }
        ranked = sorted(means.waits.items(), key=lambda item: -item[1])
        named = {kind: ms for kind, ms in ranked if ms >= _NAMED * waited}
        causes = [f"{_ms(ms)} {_CAUSES.get(kind, (kind,))[0].format(**words)}" for kind, ms in named.items()]
        if (rest := waited - sum(named.values())) >= _SMALL * means.step_ms:
            causes.append(f"{_ms(rest)} other waits")
        line = f"{line}: {', '.join(causes)}"
        advice += [_CAUSES[kind][1].format(**words) for kind in named if kind in _CAUSES]
    return [line, *(f"-> {sentence}" for sentence in advice[:_MOST_ADVICE])]


_CAUSES = {
    AGREEMENT: (
        "{rank} is late",
        "balance the samples with fsdata.FreeScaleDataLoader, or with fsdata.rebalance around this loader",
    ),
    "exclusive rows": (
        "exclusive rows (the link is slower than the compute that hides it)",
        "exclusive rows need more compute to overlap with: larger batches{or_parts}{or_kernels}. On a fast link, "
        "fscomm's threads lack a core",
    ),
    "collision rows": (
        "collision rows (sent after the update of the step before)",
        "{collide} of the ids collide with the step before: {remedy}",
    ),
    "exclusive gradients": (
        "exclusive gradients (tables are read while their updates are pending)",
        "read or save tables and run plain forwards less often: each one waits for all pending updates",
    ),
    "ids": (
        "ids (the loader of a rank, or the link, is slower than a step)",
        "a rank has its next batch too late: give its loader more threads, or let it read ahead",
    ),
    "evicted rows": ("evicted rows (ids get the rows of other ids)", "larger tables evict fewer rows"),
}
"""By kind of wait: why compute waits for it, and what helps; both are formatted with the words of `verdict`."""


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds >= 9.95 else f"{milliseconds:.1f} ms"
