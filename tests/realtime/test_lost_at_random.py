"""A rank is killed or stopped at a random moment: all others raise PeerError in time, and blame that rank alone."""

import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from exact import Run, new_run
from test_disagree import ALONE, CONFIG, cost, heard
from worlds import World

import fscomm
from fsdata import rebalance
from fsranks.control_group import DIAGNOSIS_S

TIMEOUT_S = 5.0
LATE_S = 2.0 + DIAGNOSIS_S  # at most, after the time limit
LATE_BY_OTHERS_S = 14.0  # the same where rows travel by a transport of fscomm, which may wait a second time
STEPS = (-1, 0, 0, 1, 1, 2, 4)  # -1: before the block; the first two run plainly
BLAMED = re.compile(r"ranks? ([\d, ]+?),? (?:did not|does not|came after|which hosts|has ended)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """Rank `who` of `ranks` gets the signal `how`, `after_s` seconds after it began `step`."""

    ranks: int
    who: int
    how: signal.Signals
    step: int
    after_s: float
    balance: bool
    prioritized: bool
    ddp: bool
    transport: str

    def __str__(self) -> str:
        fscomm_by = [f"fscomm by {self.transport}"] * self.prioritized
        using = "+".join(["balance"] * self.balance + fscomm_by + ["DDP"] * self.ddp)
        when = f"{self.after_s:.3f} s into step {self.step}"
        return f"{self.how.name} to {self.who} of {self.ranks}, {when}, {using}"


def fate(seed: int) -> Fate:
    draw = random.Random(seed)
    ranks = draw.randint(2, 4)
    balance, prioritized = draw.choice([(True, False), (False, True), (False, True), (True, True)])
    return Fate(
        ranks=ranks,
        who=draw.randrange(ranks),
        how=draw.choice([signal.SIGKILL, signal.SIGSTOP]),
        step=draw.choice(STEPS),
        after_s=draw.uniform(0, 0.08),
        balance=balance,
        prioritized=prioritized,
        ddp=prioritized and draw.random() < 0.3,
        transport=draw.choice(["gloo", "copy-engine", "host-staged"]),
    )


def train(run: Run, fate: Fate, begin: Callable[[int], None], steps: Iterable[int], timeout_s: float) -> None:
    """As a user does; no rank computes for longer than a moment. `begin` is told of every step before it."""
    begin(-1)
    with contextlib.ExitStack() as using:
        loader: Any = itertools.cycle(run.loader())
        if fate.balance:
            loader = using.enter_context(rebalance(loader, lengths=cost, timeout_s=timeout_s))
        if not fate.prioritized:
            for step, _ in zip(steps, loader, strict=False):
                begin(step)
                time.sleep(0.02)
            return
        comm = using.enter_context(fscomm.enable(run.model, transport=fate.transport, timeout_s=timeout_s))
        for step, batch in zip(steps, comm.lookahead(loader), strict=False):
            begin(step)
            run.train(step, batch)


def lose(rank: int, size: int, fate: Fate, moment: Path) -> tuple[str, str, float]:
    """What this rank hears, and when. Its threads end."""

    def begin(step: int) -> None:
        if rank == fate.who and step == fate.step:
            moment.write_text(str(time.monotonic() + fate.after_s))
            subprocess.Popen(["/bin/sh", "-c", f"sleep {fate.after_s:.4f}; kill -{fate.how:d} {os.getpid()}"])

    config = CONFIG if fate.ddp else ALONE
    run = new_run(rank, size, config, "fscomm")
    train(run, fate, lambda step: None, range(-3, 0), 60)  # compiles and loads everything
    dist.barrier()
    ended = []

    def loop(run: Run) -> None:
        try:
            train(run, fate, begin, itertools.count(), TIMEOUT_S)
        finally:
            ended.append(time.monotonic())

    # a question to the store, or gloo's connecting, that was given up on ends by itself later
    given_up = fate.who == 0 or fate.step == -1
    kind, text = heard(rank, size, config, loop, stays="freescale-store" if given_up else "")
    return kind, text, ended[0]


def check(fate: Fate, moment: Path) -> list[float]:
    world = World(fate.ranks)
    try:
        answers = world.run(lose, fate, moment, lost={fate.who})
    finally:
        world.kill()
    late_s = LATE_BY_OTHERS_S if fate.prioritized and fate.transport != "gloo" else LATE_S
    took = []
    for rank, answer in enumerate(answers):
        if rank == fate.who:
            continue
        kind, text, ended = answer
        took.append(ended - float(moment.read_text()))
        assert kind in ("PeerError", "StoreLost"), (rank, kind, text)
        assert f"rank {fate.who}" in text, (rank, text)
        assert fate.who or "has ended" in text or "which hosts the job's store" in text, (rank, text)
        blamed = {int(each) for found in BLAMED.findall(text) for each in found.split(",")}
        assert blamed == {fate.who}, (rank, text)
        assert took[-1] < TIMEOUT_S + late_s, (rank, took, text)
    return took


@pytest.mark.parametrize("seed", range(60))
def test_the_others_end_in_time_and_blame_the_lost_rank(seed: int, tmp_path: Path) -> None:
    fated = fate(seed)
    print(fated)
    print([f"{each:.1f}" for each in check(fated, tmp_path / "moment")])
