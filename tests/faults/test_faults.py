"""Faults by seeds: ranks end, stop, fail, leave or are late, connections break and the store stalls, one fault or two
at once, while the ranks meet, connect, agree and exchange.

Whatever happens, a rank that lives on has what it should, to the bit, or raises an error that names the lost rank and
no other, in time; and no rank waits for ever. `make faults` plays more seeds.
"""

import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import played_jobs
import played_loader
import played_rows
import pytest
from played_jobs import LIMIT_S, STEPS, draw
from played_network import Job
from ranks_as_threads import Ranks

from fsdata.errors import MismatchError, PeerError
from fsranks.job_store import DIAGNOSIS_S
from fsranks.messages import DIRECT_RANKS

IN_MAKE_TEST = 200
KEPT = (202, 238, 279, 365, 590)
"""More seeds of `make test`: each found a deliberate break (`tests/breaks.py`) that the first ones do not."""
SIZES = (2, 3, 4, 5, 9)  # from 9 on, messages are passed on in rounds
KINDS = ("none", "kill", "kill", "stop", "stop", "late", "back", "too late", "raise", "leave", "cut", "silent", "stall")
HARMLESS = ("none", "late")
TELLING_S = 2.0  # at most, until all have heard of a mistake
AT_MOST_S = 2 * LIMIT_S + DIAGNOSIS_S + 1.0  # until a lost rank is named: one exchange may end without it, not two


class Mistake(Exception):
    """Of the user's program, on one rank."""


@dataclass(frozen=True, slots=True)
class Program:
    """run: see `played_jobs`. check: raises AssertionError if what the ranks have is wrong. steps: of a whole run, if
    that is known."""

    run: Callable[..., Iterator[Any]]
    check: Callable[[list[list[Any]], int, int], None]
    steps: Callable[[int, int], int] | None = None
    groups: int = 1
    """In which its ranks wait at a time. Who waits in another group does not notice what happens in this one."""
    around: Callable[[Job], AbstractContextManager[None]] = nullcontext


MOVE = Program(played_jobs.move_rows, played_jobs.check_moved, played_jobs.steps_of_moving)
MODES = Program(played_jobs.tell_modes, played_jobs.check_modes, lambda seed, size: STEPS)
FOLLOW = Program(played_jobs.follow, played_jobs.check_followed, played_jobs.steps_of_follow)
LOAD = Program(played_loader.load, played_loader.check_loaded, around=played_loader.around)
ROWS = Program(played_rows.exchange_rows, played_rows.check_rows, lambda seed, size: STEPS, 5, played_rows.around)
PROGRAMS = (MOVE, MODES, FOLLOW, LOAD, ROWS, MOVE, MODES, FOLLOW, ROWS)


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong at `rank`, `at_s` after the beginning.

    | kind | what |
    |---|---|
    | kill | its process ends |
    | stop | its process stops for ever |
    | late, back, too late | it stops for `for_s`: less than the limit; until the others look for it; for much longer |
    | raise, leave | its user's code does so at `step` |
    | cut, silent | its connections with `peer` end; they bear no message any more |
    | stall | the store answers nothing for `for_s` |
    """

    kind: str
    rank: int
    at_s: float
    step: int
    for_s: float
    peer: int

    @property
    def ranks(self) -> set[int]:
        """Whom errors may name."""
        return {self.rank, self.peer} if self.kind in ("cut", "silent") else {self.rank}


def faults_of(seed: int, size: int) -> list[Fault]:
    """One, or two of different ranks."""
    by = draw(seed)
    ranks = by.permutation(size)
    faults = [_fault(by, int(ranks[0]), int(ranks[1]), KINDS[by.integers(len(KINDS))])]
    if size > 2 and by.random() < 0.3:
        kinds = [kind for kind in KINDS if kind not in (faults[0].kind, *HARMLESS)]
        faults.append(_fault(by, int(ranks[-1]), int(ranks[0]), kinds[by.integers(len(kinds))]))
    return faults


def _fault(by: np.random.Generator, rank: int, peer: int, kind: str) -> Fault:
    at_s = by.uniform(0, by.choice([0.03, 0.6]))  # while they meet and connect, or at any time
    for_s = {
        "late": by.uniform(0.2, 0.9) * LIMIT_S,
        "back": LIMIT_S + by.uniform(-0.5, DIAGNOSIS_S + 1),
        "too late": 3 * LIMIT_S,
        "stall": by.choice([0.5, 3.0, LIMIT_S, 3 * LIMIT_S]),
    }
    return Fault(kind, rank, float(at_s), int(by.integers(-1, 2 * STEPS)), float(for_s.get(kind, 0.0)), peer)


@dataclass(slots=True)
class Outcome:
    """Of one rank: the steps that it made, and the error that ended them, after so many seconds.

    slipped_s: when its user's code raised or left.
    """

    steps: list[Any]
    error: Exception | None = None
    at_s: float = 0.0
    slipped_s: float = 0.0


def work(job: Job, rank: int, seed: int, program: Program, faults: list[Fault], outcome: Outcome) -> Outcome:
    def slip(step: int) -> bool:
        here = [fault.kind for fault in faults if (fault.rank, fault.step) == (rank, step)]
        if here and here[0] in ("raise", "leave"):
            outcome.slipped_s = job.ranks.now()
        if "raise" in here:
            raise Mistake(f"of rank {rank}")
        return "leave" in here

    try:
        for made in program.run(job, rank, seed, slip):
            outcome.steps.append(made)
    except (PeerError, MismatchError, Mistake) as error:
        outcome.error = error
    outcome.at_s = job.ranks.now()
    return outcome


def named(error: Exception) -> set[int]:
    """The ranks that a message blames; not those that report what they have found."""
    text = re.sub(r"failed on rank \d+|rank \d+ lost the others", "", str(error))
    return {int(number) for ranks in re.findall(r"ranks? (\d+(?:, \d+)*)", text) for number in ranks.split(", ")}


def inject(job: Job, fault: Fault) -> None:
    ranks = job.ranks
    if fault.kind == "kill":
        ranks.at(fault.at_s, ranks.kill, fault.rank)
    elif fault.kind in ("stop", "late", "back", "too late"):
        ranks.at(fault.at_s, ranks.stop, fault.rank)
        if fault.kind != "stop":
            ranks.at(fault.at_s + fault.for_s, ranks.go_on, fault.rank)
    elif fault.kind in ("cut", "silent"):
        ranks.at(fault.at_s, job.cut, fault.rank, fault.peer, fault.kind == "cut")
    elif fault.kind == "stall":
        ranks.at(fault.at_s, job.stall, fault.for_s)


def play(seed: int) -> str:
    """One job; what became of it. Raises AssertionError if a promise is broken."""
    program, size = PROGRAMS[seed % len(PROGRAMS)], SIZES[seed // len(PROGRAMS) % len(SIZES)]
    faults, ranks = faults_of(seed, size), Ranks(size, seed)
    job = Job(
        ranks,
        machines=(lambda rank: "one") if seed % 4 else str,
        store_host=0 if seed % 5 else None,
    )
    for fault in faults:
        inject(job, fault)
    records = [Outcome([]) for _ in range(size)]
    with program.around(job):
        outcomes = ranks.run(lambda rank: work(job, rank, seed, program, faults, records[rank]))
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    program.check([record.steps for record in records], seed, size)
    for rank, outcome in enumerate(outcomes):
        if outcome is None or isinstance(outcome.error, Mistake):
            continue
        if outcome.error is not None:
            check_error(rank, outcome, program, job, faults, outcomes)
        elif program.steps is not None and all((fault.kind, fault.rank) != ("leave", rank) for fault in faults):
            assert len(outcome.steps) == program.steps(seed, size), f"rank {rank} ended early, without an error"
    if len(faults) == 1 and faults[0].kind == "raise" and program is MOVE:
        check_told(faults[0], outcomes)
    kinds = " and ".join(fault.kind for fault in faults)
    return f"{kinds}: {dict(Counter(type(outcome and outcome.error).__name__ for outcome in outcomes))}"


def check_error(
    rank: int, outcome: Outcome, program: Program, job: Job, faults: list[Fault], outcomes: list[Outcome | None]
) -> None:
    """The error of a rank names ranks of faults, in time."""
    error = outcome.error
    assert any(fault.kind not in HARMLESS for fault in faults), error
    if all(fault.rank == rank for fault in faults):
        return  # a rank that was stopped finds that the others have ended
    kinds = {fault.kind for fault in faults}
    if any(fault.for_s and fault.rank == job.store_host for fault in faults):
        kinds.add("stall")  # the store stands still with its host: ranks come late because of it
    guilty = set().union(*(fault.ranks for fault in faults))
    host = None if job.store_host is None else outcomes[job.store_host]
    if host is not None and host.at_s < outcome.at_s:
        guilty.add(job.store_host)  # it has ended, and nothing is heard from the others any more
    hard = [len(faults) > 1, program.groups > 1, job.ranks.size > DIRECT_RANKS, not kinds.isdisjoint(("cut", "silent"))]
    unheard = sum(hard) > 1
    if "stall" not in kinds and not unheard:  # ranks that come late are named, and ranks that have not noticed anything
        assert named(error) - {rank} <= guilty, error
    if (
        not unheard
        and kinds.isdisjoint(("stall", "cut", "silent"))
        and not any(_hides(fault, error, outcomes) for fault in faults)
    ):
        assert named(error) & guilty, error
    slips = [outcomes[fault.rank] for fault in faults if fault.kind in ("raise", "leave")]
    told = [each.slipped_s for each in slips if each is not None]
    begins = [fault.at_s + fault.for_s * (fault.kind in ("late", "back", "stall")) for fault in faults]
    begin_s = max([*begins, *told])
    heard = told and len(faults) == 1 and faults[0].step > 0  # before the first step nobody waits for a word
    assert outcome.at_s - begin_s < (TELLING_S if heard else AT_MOST_S), error


def _hides(fault: Fault, error: Exception, outcomes: list[Outcome | None]) -> bool:
    """Whether a rank that comes back looks like those that have waited for it: it comes back very soon or only when the
    others have ended, it was about to connect, or it has made its last step."""
    if fault.kind != "back":
        return False
    heard = 1.2 * LIMIT_S + 1 < fault.for_s < LIMIT_S + DIAGNOSIS_S - 1
    back = outcomes[fault.rank]
    return not heard or "could not connect" in str(error) or back is None or back.error is None


def check_told(fault: Fault, outcomes: list[Outcome | None]) -> None:
    """What a rank raises inside of the loader, the others read."""
    for rank, outcome in enumerate(outcomes):
        if rank != fault.rank and outcome.error is not None and not 0 <= fault.step < STEPS:
            assert f"Mistake: of rank {fault.rank}" in str(outcome.error)


def play_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            play(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_promises_hold_where_they_were_broken() -> None:
    play_all(KEPT)


@pytest.mark.parametrize("first", range(0, IN_MAKE_TEST, 50))
def test_promises_hold_whatever_happens(first: int) -> None:
    play_all(range(first, first + 50))


@pytest.mark.long
def test_promises_hold_with_other_seeds_in_every_run() -> None:
    first = secrets.randbelow(2**31)
    play_all(range(first, first + 500))
