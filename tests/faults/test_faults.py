"""Faults by seeds: ranks that end, stop, fail, leave or are late while they meet, connect, agree and exchange.

Whatever happens, a rank that lives on has what it should, to the bit, or raises an error that names the lost rank and
no other, in time; and no rank waits for ever. `make faults` plays more seeds.
"""

import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import played_jobs
import pytest
from played_jobs import LIMIT_S, STEPS, draw
from played_network import Job
from ranks_as_threads import Ranks

from fsdata.errors import MismatchError, PeerError
from fsranks.job_store import DIAGNOSIS_S

IN_MAKE_TEST = 200
SIZES = (2, 3, 4, 5, 9)  # from 9 on, messages are passed on in rounds
KINDS = ("none", "kill", "kill", "stop", "stop", "late", "too late", "raise", "leave")
TELLING_S = 2.0  # at most, until all have heard of a mistake
AT_MOST_S = 2 * LIMIT_S + DIAGNOSIS_S + 1.0  # until a lost rank is named: one exchange may end without it, not two


class Mistake(Exception):
    """Of the user's program, on one rank."""


@dataclass(frozen=True, slots=True)
class Program:
    """run: see `played_jobs`. check: raises AssertionError if what the ranks have is wrong. steps: of a whole run."""

    run: Callable[..., Iterator[Any]]
    check: Callable[[list[list[Any]], int, int], None]
    steps: Callable[[int, int], int]


PROGRAMS = (
    Program(played_jobs.move_rows, played_jobs.check_moved, lambda seed, size: STEPS),
    Program(played_jobs.tell_modes, played_jobs.check_modes, lambda seed, size: STEPS),
    Program(played_jobs.follow, played_jobs.check_followed, played_jobs.steps_of_follow),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong: `kind` at `rank`, `at_s` after the beginning; its user's code raises or leaves at `step`."""

    kind: str
    rank: int
    at_s: float
    step: int


def fault_of(seed: int, size: int) -> Fault:
    by = draw(seed)
    kind = KINDS[by.integers(len(KINDS))]
    at_s = by.uniform(0, by.choice([0.03, 0.6]))  # while they meet and connect, or at any time
    return Fault(kind, int(by.integers(size)), float(at_s), int(by.integers(-1, 2 * STEPS)))


@dataclass(slots=True)
class Outcome:
    """Of one rank: the steps that it made, and the error that ended them, after so many seconds."""

    steps: list[Any]
    error: Exception | None = None
    at_s: float = 0.0


def work(job: Job, rank: int, seed: int, program: Program, fault: Fault) -> Outcome:
    def slip(step: int) -> bool:
        here = rank == fault.rank and step == fault.step
        if here and fault.kind == "raise":
            raise Mistake(f"of rank {rank}")
        return here and fault.kind == "leave"

    outcome = Outcome([])
    try:
        for made in program.run(job, rank, seed, slip):
            outcome.steps.append(made)
    except (PeerError, MismatchError, Mistake) as error:
        outcome.error = error
    outcome.at_s = job.ranks.now()
    return outcome


def named(error: Exception) -> set[int]:
    """The ranks in a message."""
    return {int(number) for ranks in re.findall(r"ranks? (\d+(?:, \d+)*)", str(error)) for number in ranks.split(", ")}


def play(seed: int) -> str:
    """One job; what became of it. Raises AssertionError if a promise is broken."""
    program, size = PROGRAMS[seed % len(PROGRAMS)], SIZES[seed // len(PROGRAMS) % len(SIZES)]
    fault, ranks = fault_of(seed, size), Ranks(size, seed)
    job = Job(
        ranks,
        machines=(lambda rank: "one") if seed % 4 else str,
        store_host=0 if seed % 5 else None,
    )
    if fault.kind == "kill":
        ranks.at(fault.at_s, ranks.kill, fault.rank)
    elif fault.kind in ("stop", "late", "too late"):
        ranks.at(fault.at_s, ranks.stop, fault.rank)
        if fault.kind != "stop":
            ranks.at(fault.at_s + LIMIT_S * (0.7 if fault.kind == "late" else 2), ranks.go_on, fault.rank)
    outcomes = ranks.run(lambda rank: work(job, rank, seed, program, fault))
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    program.check([[] if outcome is None else outcome.steps for outcome in outcomes], seed, size)
    for rank, outcome in enumerate(outcomes):
        if rank == fault.rank or outcome is None:
            continue
        if outcome.error is None:
            assert len(outcome.steps) == program.steps(seed, size), f"rank {rank} ended early, without an error"
        else:
            assert fault.kind not in ("none", "late"), outcome.error
            assert named(outcome.error) - {rank} == {fault.rank}, outcome.error
            told = outcomes[fault.rank] if fault.kind in ("raise", "leave") else None
            assert outcome.at_s - (told or fault).at_s < (TELLING_S if told else AT_MOST_S), outcome.error
            if fault.kind == "raise" and program.run is played_jobs.move_rows and not 0 <= fault.step < STEPS:
                assert f"Mistake: of rank {fault.rank}" in str(outcome.error)
    return f"{fault.kind}: {dict(Counter(type(outcome and outcome.error).__name__ for outcome in outcomes))}"


def play_all(seeds: range) -> None:
    for seed in seeds:
        try:
            play(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("first", range(0, IN_MAKE_TEST, 50))
def test_promises_hold_whatever_happens(first: int) -> None:
    play_all(range(first, first + 50))


@pytest.mark.long
def test_promises_hold_with_other_seeds_in_every_run() -> None:
    first = secrets.randbelow(2**31)
    play_all(range(first, first + 500))
