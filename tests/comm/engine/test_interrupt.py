"""Ctrl-C in a block: pending updates that other ranks do not come to are given up."""

from datetime import timedelta

import torch.distributed as dist
from exact import new_run
from exact_configs import CONFIGS
from patience import PATIENCE_S
from worlds import shared_world

import fscomm
from fscomm.errors import PeerError

CONFIG = CONFIGS["several"].but(data_parallel=False)
STEP = 4


def interrupted(rank: int, size: int, together: bool) -> list[str]:
    """What a rank is told that Ctrl-C stopped after its backward pass; the other one stands still before its own."""
    store = dist.distributed_c10d._get_default_store()
    left = f"left {together}"
    run = new_run(rank, size, CONFIG, "fscomm", {})
    notes: list[str] = []
    try:
        with fscomm.enable(run.model, timeout_s=2 * PATIENCE_S) as comm:
            for step, batch in enumerate(comm.lookahead(run.loader())):
                run.optimizer.zero_grad()
                loss = run.loss(step, batch)
                if step == STEP and rank == 0 and not together:
                    store.wait([left], timedelta(seconds=PATIENCE_S))  # fails if the other rank waits for this one
                loss.backward()
                if step == STEP:
                    raise KeyboardInterrupt
                run.optimizer.step()
    except (KeyboardInterrupt, PeerError) as error:
        notes = list(getattr(error, "__notes__", []))
        if rank == 1:
            store.set(left, "yes")
    return notes


def test_it_does_not_wait_for_a_rank_that_stands_still() -> None:
    _, notes = shared_world(2).run(interrupted, False)
    assert "pending updates" in notes[0]
    assert "Ctrl-C" in notes[0]


def test_updates_are_completed_where_all_ranks_come_to_them() -> None:
    assert shared_world(2).run(interrupted, True) == [[], []]
