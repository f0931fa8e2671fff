"""Faults by seeds: ranks that end, stop or are late while they meet, connect, agree and move rows.

Whatever happens, a rank that lives on has what it should, to the bit, or raises an error that names the lost rank and
no other; and no rank waits for ever.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from played_network import Job
from ranks_as_threads import Ranks
from samples import SPEC, lengths_of, read, sample, table_of

from fsdata.balance.exchange import Assignment, StatusWord, StepExchange, StepResult
from fsdata.errors import PeerError
from fsranks.meeting import Meeting

LIMIT_S = 10.0
STEPS = 4
SEEDS = 200


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong: `kind` at `rank`, `at_s` after the beginning."""

    kind: str
    rank: int
    at_s: float


def fault_of(seed: int, size: int) -> Fault:
    draw = np.random.default_rng(seed)
    kind = ("none", "kill", "kill", "stop", "stop", "late", "too late")[draw.integers(7)]
    return Fault(kind, int(draw.integers(size)), float(draw.uniform(0, 0.6)))


def counts_of(seed: int, step: int, size: int) -> np.ndarray:
    return np.random.default_rng([seed, step]).integers(0, 4, size)


def train(job: Job, rank: int, seed: int) -> list[Any]:
    """The steps that this rank made; an error ends them and comes last."""
    context, size = job.context(rank), job.ranks.size
    steps: list[Any] = []
    try:
        with Meeting(context, what="job", timeout_s=LIMIT_S) as meeting:
            meeting.agree({"seed": str(seed)})
        exchange = StepExchange(context, timeout_s=LIMIT_S)
        for step in range(STEPS):
            job.ranks.wait(job.ranks.random.random() * 0.2)  # computes
            counts = counts_of(seed, step, size)
            table = table_of(step, rank, counts[rank], lengths_of(step, rank, counts[rank])) if counts[rank] else None
            plan = np.random.default_rng([seed, step, 1]).integers(0, size, counts.sum())
            status = StatusWord(epoch=0, step=step, ended=step == STEPS - 1)
            steps.append(exchange.step(table, SPEC, lambda _, plan=plan: Assignment(rank=plan), status))
    except PeerError as error:
        steps.append(error)
        job.ranks.wait(2 * LIMIT_S)  # rank 0 hosts the store: the others still ask it
    return steps


def check_rows(made: StepResult, seed: int, step: int, rank: int, size: int) -> None:
    counts = counts_of(seed, step, size)
    home = np.repeat(np.arange(size), counts)
    rows = np.concatenate([np.arange(count) for count in counts])
    here = np.flatnonzero(np.random.default_rng([seed, step, 1]).integers(0, size, counts.sum()) == rank)
    assert made.origin.tolist() == np.stack([home[here], rows[here]], axis=1).tolist()
    for i, (origin, row) in enumerate(made.origin):
        assert read(made.table, i) == sample(step, origin, row, lengths_of(step, origin, counts[origin]))


def play(seed: int) -> str:
    """One job; what became of it. Raises AssertionError if a promise is broken."""
    size = 2 + seed % 4
    fault, ranks = fault_of(seed, size), Ranks(size, seed)
    job = Job(ranks, machines=(lambda rank: "one") if seed % 3 else str)
    if fault.kind == "kill":
        ranks.at(fault.at_s, ranks.kill, fault.rank)
    elif fault.kind != "none":
        ranks.at(fault.at_s, ranks.stop, fault.rank)
        if fault.kind != "stop":
            late_s = LIMIT_S * (0.7 if fault.kind == "late" else 2)
            ranks.at(fault.at_s + late_s, ranks.go_on, fault.rank)
    outcomes = ranks.run(lambda rank: train(job, rank, seed))
    errors = {}
    for rank, steps in enumerate(outcomes):
        assert not isinstance(steps, BaseException), (rank, steps)
        for step, made in enumerate(steps or []):
            if isinstance(made, PeerError):
                errors[rank] = str(made)
            else:
                check_rows(made, seed, step, rank, size)
    if fault.kind in ("none", "late"):
        assert errors == {}
    for rank, text in errors.items():
        if rank != fault.rank:
            assert f"rank {fault.rank}" in text, text
    ended = Counter(type(steps[-1]).__name__ for steps in outcomes if steps)
    return f"{fault.kind}: {dict(ended)}"


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_promises_hold_whatever_happens(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            play(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
