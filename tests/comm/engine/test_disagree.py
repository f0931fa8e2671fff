"""Ranks that do not do the same: all agree, or all raise without waiting for the time limit, and name the rank.

Ranks that are late, killed or stopped: `tests/realtime/test_late_or_lost_in_a_block.py`.
"""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from exact import Run, new_run
from exact_kinds import TWO
from exact_model import Batch, Config
from patience import PATIENCE_S, until
from worlds import shared_world

import fscomm
from fscomm.errors import PeerError
from fsdata import rebalance

CONFIG = Config(modules=TWO, static_graph=False)
ALONE = CONFIG.but(data_parallel=False)  # without DDP, whose own exchange would hang first
ODD = 1  # the rank that does something else
STEP = 3  # where it does


def heard(rank: int, size: int, config: Config, loop: Callable[[Run], None], *, stays: str = "") -> tuple[str, str]:
    """What this rank's loop raised: type and text. Returns when no thread is left but the one that `stays`."""
    run = new_run(rank, size, config, "fscomm")
    dist.barrier()
    try:
        loop(run)
    except Exception as error:
        said = (type(error).__name__, str(error))
    else:
        said = ("", "")

    def is_over() -> bool:
        names = [thread.name for thread in threading.enumerate()]
        return not any(name.startswith(("fscomm", "freescale")) and name != stays for name in names)

    until(is_over, "the end of all threads")
    return said


def differs(what: str, run: Run) -> None:
    """The odd rank does `what` at step `STEP`."""

    def load() -> Iterator[Batch]:
        for step, batch in enumerate(run.loader()):
            if run.rank == ODD and step == STEP and what == "loader ends":
                return
            if run.rank == ODD and step == STEP and what == "loader raises":
                raise OSError("bad disk")
            yield batch

    with fscomm.enable(run.model, timeout_s=PATIENCE_S) as comm:
        for step, batch in enumerate(comm.lookahead(load())):
            now = what if run.rank == ODD and step == STEP else ""
            if now == "leaves":
                break
            if now == "skips forward":
                continue
            loss = run.loss(step, batch)
            if now == "raises":
                raise KeyError("out of cheese")
            if now != "skips backward":
                loss.backward()


@pytest.mark.parametrize(
    ("what", "odd", "others", "words"),  # the odd rank hears, the others hear, words that all others' messages hold
    [
        ("loader ends", "MismatchError", "MismatchError", "rank 1 ended at batch 3"),
        ("loader raises", "OSError", "MismatchError", "rank 1 failed at batch 3"),
        ("raises", "KeyError", "PeerError", "rank 1"),
        ("leaves", "", "PeerError", "rank 1"),
        ("skips backward", "MismatchError", "MismatchError", "backward passes by rank is"),
        ("skips forward", "MismatchError", "MismatchError", "step by rank is"),
    ],
)
def test_all_raise_and_name_the_rank(what: str, odd: str, others: str, words: str) -> None:
    for rank, (kind, text) in enumerate(shared_world(3).run(heard, ALONE, partial(differs, what))):
        assert kind == (odd if rank == ODD else others), (rank, kind, text)
        assert rank == ODD or words in text


def cost(batch: Batch) -> torch.Tensor:
    return torch.ones(len(batch.dense), dtype=torch.int64) + batch.ids["a"]["r0"].lengths()


def two_groups(rank: int, size: int, steps: int, train: Callable[[Run, int, Batch], None] = Run.train) -> int:
    """Two served models under DDP, each with a redistributed loader; how many steps were trained."""
    one = new_run(rank, size, CONFIG, "fscomm")
    two = new_run(one.rank, one.size, one.config, one.mode, one.options)
    done = 0
    with (
        rebalance(one.loader(0, steps), lengths=cost, timeout_s=PATIENCE_S) as first,
        rebalance(two.loader(7, steps + 7), lengths=cost, timeout_s=PATIENCE_S) as second,
        one.enable() as comm,
        two.enable() as also,
    ):
        for mine, theirs in zip(comm.lookahead(first), also.lookahead(second), strict=True):
            train(one, done, mine)
            train(two, done, theirs)
            done += 1
    return done


def test_two_groups_ddp_and_redistribution_together() -> None:
    """With ranks that are late at random: `tests/realtime/test_late_or_lost_in_a_block.py`."""
    done = shared_world(2).run(two_groups, 5)
    assert len(set(done)) == 1
    assert done[0] >= 4


def interrupted(rank: int, size: int, together: bool) -> list[str]:
    """What a rank is told that Ctrl-C stopped after its backward pass; the other one stands still before its own."""
    store: Any = dist.distributed_c10d._get_default_store()
    left = f"left {together}"
    run = new_run(rank, size, ALONE, "fscomm")
    try:
        with fscomm.enable(run.model, timeout_s=2 * PATIENCE_S) as comm:
            for step, batch in enumerate(comm.lookahead(run.loader())):
                run.optimizer.zero_grad()
                loss = run.loss(step, batch)
                if step == STEP and rank != ODD and not together:
                    store.wait([left], timedelta(seconds=PATIENCE_S))  # fails if the other rank waits for this one
                loss.backward()
                if step == STEP:
                    raise KeyboardInterrupt
                run.optimizer.step()
    except (KeyboardInterrupt, PeerError) as error:
        if rank == ODD:
            store.set(left, "yes")
        return list(getattr(error, "__notes__", []))
    return []


def test_ctrl_c_does_not_wait_for_a_rank_that_stands_still() -> None:
    notes = shared_world(2).run(interrupted, False)[ODD]
    assert "pending updates" in notes[0]
    assert "Ctrl-C" in notes[0]


def test_after_ctrl_c_updates_are_completed_where_all_ranks_come_to_them() -> None:
    assert shared_world(2).run(interrupted, True) == [[], []]
