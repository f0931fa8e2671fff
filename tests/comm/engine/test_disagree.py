"""Ranks that do not do the same: all agree, or all raise within the time limit and name the rank. Nobody hangs."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from exact import Run, build_again, compare, new_run
from exact_kinds import TWO
from exact_model import Batch, Config
from patience import PATIENCE_S
from worlds import World, shared_world

import fscomm
from fsdata import rebalance

CONFIG = Config(modules=TWO, static_graph=False)
ALONE = CONFIG.but(data_parallel=False)  # without DDP, whose own exchange would hang first
TIMEOUT_S = 3.0
LIMIT_S = TIMEOUT_S + 14  # a slow machine included; without a time limit it would be the group's 60 s
ODD = 1  # the rank that does something else


def heard(rank: int, size: int, config: Config, loop: Callable[[Run], None]) -> tuple[str, str, float, list[str]]:
    """What this rank's loop raised (type and text), how long that took, and which threads are left."""
    run = new_run(rank, size, config, "fscomm")
    dist.barrier()
    start = time.monotonic()
    try:
        loop(run)
    except Exception as error:
        said = (type(error).__name__, str(error))
    else:
        said = ("", "")
    took = time.monotonic() - start
    for _ in range(100):
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith(("fscomm", "freescale"))]
        if not left:
            break
        time.sleep(0.05)
    return *said, took, left


def loader_ends_early(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=TIMEOUT_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader(0, 4 if run.rank == ODD else 6))):
            run.train(step, batch)


def loader_raises(run: Run) -> None:
    def load() -> Iterator[Batch]:
        yield from run.loader(0, 3)
        if run.rank == ODD:
            raise OSError("bad disk")
        yield from run.loader(3, 6)

    with fscomm.enable(run.model, timeout_s=TIMEOUT_S) as comm:
        for step, batch in enumerate(comm.lookahead(load())):
            run.train(step, batch)


def loop_raises(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=TIMEOUT_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if run.rank == ODD and step == 3:
                raise KeyError("out of cheese")
            run.train(step, batch)


def loop_raises_in_forward(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=TIMEOUT_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            loss = run.loss(step, batch)
            if run.rank == ODD and step == 3:
                raise KeyError("out of cheese")
            loss.backward()
            run.optimizer.step()


def leaves_early(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=TIMEOUT_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if run.rank == ODD and step == 3:
                break


def skips_backward(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=TIMEOUT_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if run.rank == ODD and step == 3:
                run.loss(step, batch)
            else:
                run.train(step, batch)


def skips_forward(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=TIMEOUT_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if run.rank == ODD and step == 3:
                continue
            run.train(step, batch)


def evaluates_alone(run: Run) -> None:
    """An eval forward is a collective of TorchRec's own; here one rank makes another training forward instead."""
    with fscomm.enable(run.model, timeout_s=TIMEOUT_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if run.rank == ODD and step == 3:
                run.train(30, batch)


def does_not_enable(run: Run) -> None:
    if run.rank == ODD:
        time.sleep(TIMEOUT_S + 1)
        raise KeyError("elsewhere")
    with fscomm.enable(run.model, timeout_s=TIMEOUT_S):
        pass


def is_late(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=TIMEOUT_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if run.rank == ODD and step == 3:
                time.sleep(TIMEOUT_S + 4)
            run.train(step, batch)


# (loop, the odd rank hears, the others hear, words that all others' messages hold)
CASES: list[tuple[Callable[[Run], None], str, str, str]] = [
    (loader_ends_early, "MismatchError", "MismatchError", "rank 1 ended at batch 4"),
    (loader_raises, "OSError", "MismatchError", "rank 1 failed at batch 3"),
    (loop_raises, "KeyError", "PeerError", "rank 1"),
    (loop_raises_in_forward, "KeyError", "PeerError", "rank 1"),
    (leaves_early, "", "PeerError", "rank 1"),
    (skips_backward, "MismatchError", "MismatchError", "by rank is"),
    (skips_forward, "MismatchError", "MismatchError", "by rank is"),
    (evaluates_alone, "MismatchError", "MismatchError", "step by rank is"),
    (is_late, "PeerError", "PeerError", "rank 1"),
]


@pytest.mark.parametrize(("loop", "odd", "others", "words"), CASES, ids=[case[0].__name__ for case in CASES])
def test_all_raise_and_name_the_rank(loop: Callable[[Run], None], odd: str, others: str, words: str) -> None:
    check(shared_world(3), loop, odd, others, words)


def test_a_rank_that_does_not_come_to_enable_is_named() -> None:
    world = World(3)  # its ranks have met unequally often afterwards
    try:
        check(world, does_not_enable, "KeyError", "PeerError", "rank 1")
    finally:
        world.kill()


def check(world: World, loop: Callable[[Run], None], odd: str, others: str, words: str) -> None:
    for rank, (kind, text, took, left) in enumerate(world.run(heard, ALONE, loop)):
        assert kind == (odd if rank == ODD else others), (rank, kind, text)
        if rank != ODD:
            assert words in text
        assert took < LIMIT_S, (rank, took)
        assert left == [], rank


def lost(
    rank: int, size: int, who: int, how: signal.Signals, at: int, transport: str
) -> tuple[str, str, float, list[str]]:
    """Rank `who` is lost in step `at`, its rows under way; at -1 before `enable`."""

    def lose(run: Run, step: int) -> None:
        if run.rank == who and step == at:
            os.kill(os.getpid(), how)

    def loop(run: Run) -> None:
        lose(run, -1)
        with fscomm.enable(run.model, transport=transport, timeout_s=TIMEOUT_S) as comm:
            for step, batch in enumerate(comm.lookahead(run.loader())):
                loss = run.loss(step, batch)
                lose(run, step)
                run.optimizer.zero_grad()
                loss.backward()
                run.optimizer.step()

    return heard(rank, size, ALONE, loop)


LOST = [
    pytest.param(ODD, signal.SIGKILL, 0, id="killed while all runs plainly"),
    pytest.param(ODD, signal.SIGSTOP, 0, id="stopped while all runs plainly"),
    pytest.param(ODD, signal.SIGKILL, 3, id="killed"),
    pytest.param(ODD, signal.SIGSTOP, 3, id="stopped"),
    pytest.param(0, signal.SIGKILL, 3, id="host of the store killed"),
    pytest.param(0, signal.SIGSTOP, 3, id="host of the store stopped"),
    pytest.param(0, signal.SIGKILL, -1, id="host of the store killed before", marks=pytest.mark.long),
    pytest.param(0, signal.SIGSTOP, -1, id="host of the store stopped before", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("who", "how", "at"), LOST)
def test_a_lost_rank_is_named(who: int, how: signal.Signals, at: int) -> None:
    check_lost(who, how, at, "gloo")


@pytest.mark.parametrize("transport", ["copy-engine", "host-staged"])
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
def test_a_lost_rank_is_named_whatever_carries_rows(how: signal.Signals, transport: str) -> None:
    check_lost(ODD, how, 3, transport)


def check_lost(who: int, how: signal.Signals, at: int, transport: str) -> None:
    world = World(3)
    try:
        answers = world.run(lost, who, how, at, transport, lost={who})
    finally:
        world.kill()
    for rank, answer in enumerate(answers):
        if rank != who:
            kind, text, took, left = answer
            assert kind == ("PeerError" if at >= 0 else "StoreLost"), (kind, text)
            assert f"rank {who}" in text
            assert who != 0 or "rank 0, which hosts the job's store" in text
            assert took < LIMIT_S
            # a question that the store does not answer is given up on, its thread ends with the connection
            assert [name for name in left if who != 0 or name != "freescale-store"] == []


def falls_back(run: Run) -> None:
    """One rank's model gets other ids than were announced, so all run that step plainly."""
    strange = run.loader(50, 60)
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, strange[step] if step in (2, 5) and run.rank == ODD else batch)


def test_one_rank_falls_back_and_all_agree() -> None:
    for found, said in shared_world(3).run(compare, CONFIG, falls_back):
        assert found == []
        assert said["fallbacks"].keys() == {"embeddings.a", "embeddings.b"}


def cost(batch: Batch) -> torch.Tensor:
    return torch.ones(len(batch.dense), dtype=torch.int64) + batch.ids["a"]["r0"].lengths()


def soak(rank: int, size: int, steps: int) -> int:
    """Two served models under DDP, each with a redistributed loader, and ranks that are late at random."""
    late = random.Random(rank)
    one = new_run(rank, size, CONFIG, "fscomm")
    two = build_again(one)
    done = 0
    with (
        rebalance(one.loader(0, steps), lengths=cost, timeout_s=PATIENCE_S) as first,
        rebalance(two.loader(7, steps + 7), lengths=cost, timeout_s=PATIENCE_S) as second,
        one.enable() as comm,
        two.enable() as also,
    ):
        for mine, theirs in zip(comm.lookahead(first), also.lookahead(second), strict=True):
            for run, batch in ((one, mine), (two, theirs)):
                time.sleep(late.choice([0, 0, 0.002, 0.01]))
                run.optimizer.zero_grad()
                loss = run.loss(done, batch)
                time.sleep(late.choice([0, 0, 0.002]))
                loss.backward()
                time.sleep(late.choice([0, 0, 0.002]))
                run.optimizer.step()
            done += 1
    return done


@pytest.mark.parametrize("steps", [25, pytest.param(100, marks=pytest.mark.long)])
def test_two_groups_ddp_and_redistribution_together(steps: int) -> None:
    done = shared_world(3).run(soak, steps)
    assert len(set(done)) == 1
    assert done[0] >= steps - 1
