"""Ranks that do not do the same: all agree, or all raise without waiting for the time limit, and name the rank.

Ranks that are late, killed or stopped: `tests/realtime/test_late_or_lost_in_a_block.py`.
"""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from exact import Run, build_again, compare, new_run
from exact_kinds import TWO
from exact_model import Batch, Config
from patience import PATIENCE_S, until
from worlds import World, shared_world

import fscomm
from fsdata import rebalance

CONFIG = Config(modules=TWO, static_graph=False)
ALONE = CONFIG.but(data_parallel=False)  # without DDP, whose own exchange would hang first
ODD = 1  # the rank that does something else


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


def loader_ends_early(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=PATIENCE_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader(0, 4 if run.rank == ODD else 6))):
            run.train(step, batch)


def loader_raises(run: Run) -> None:
    def load() -> Iterator[Batch]:
        yield from run.loader(0, 3)
        if run.rank == ODD:
            raise OSError("bad disk")
        yield from run.loader(3, 6)

    with fscomm.enable(run.model, timeout_s=PATIENCE_S) as comm:
        for step, batch in enumerate(comm.lookahead(load())):
            run.train(step, batch)


def loop_raises(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=PATIENCE_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if run.rank == ODD and step == 3:
                raise KeyError("out of cheese")
            run.train(step, batch)


def loop_raises_in_forward(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=PATIENCE_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            loss = run.loss(step, batch)
            if run.rank == ODD and step == 3:
                raise KeyError("out of cheese")
            loss.backward()
            run.optimizer.step()


def leaves_early(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=PATIENCE_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if run.rank == ODD and step == 3:
                break


def skips_backward(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=PATIENCE_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if run.rank == ODD and step == 3:
                run.loss(step, batch)
            else:
                run.train(step, batch)


def skips_forward(run: Run) -> None:
    with fscomm.enable(run.model, timeout_s=PATIENCE_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if run.rank == ODD and step == 3:
                continue
            run.train(step, batch)


def evaluates_alone(run: Run) -> None:
    """An eval forward is a collective of TorchRec's own; here one rank makes another training forward instead."""
    with fscomm.enable(run.model, timeout_s=PATIENCE_S) as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if run.rank == ODD and step == 3:
                run.train(30, batch)


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
]


FORMS_OF_OTHERS = (loop_raises_in_forward, skips_backward)
PARAMS = [
    pytest.param(*case, id=case[0].__name__, marks=[pytest.mark.long] * (case[0] in FORMS_OF_OTHERS)) for case in CASES
]


@pytest.mark.parametrize(("loop", "odd", "others", "words"), PARAMS)
def test_all_raise_and_name_the_rank(loop: Callable[[Run], None], odd: str, others: str, words: str) -> None:
    check(shared_world(3), loop, odd, others, words)


def check(world: World, loop: Callable[[Run], None], odd: str, others: str, words: str) -> None:
    for rank, (kind, text) in enumerate(world.run(heard, ALONE, loop)):
        assert kind == (odd if rank == ODD else others), (rank, kind, text)
        assert rank == ODD or words in text


def falls_back(run: Run) -> None:
    """One rank's model gets other ids than were announced, so all run that step plainly."""
    strange = run.loader(50, 60)
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, strange[step] if step in (2, 5) and run.rank == ODD else batch)


@pytest.mark.long
def test_one_rank_falls_back_and_all_agree() -> None:
    for found, said in shared_world(3).run(compare, CONFIG, falls_back):
        assert found == []
        assert said["fallbacks"].keys() == {"embeddings.a", "embeddings.b"}


def cost(batch: Batch) -> torch.Tensor:
    return torch.ones(len(batch.dense), dtype=torch.int64) + batch.ids["a"]["r0"].lengths()


def two_groups(rank: int, size: int, steps: int, train: Callable[[Run, int, Batch], None] = Run.train) -> int:
    """Two served models under DDP, each with a redistributed loader; how many steps were trained."""
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
            train(one, done, mine)
            train(two, done, theirs)
            done += 1
    return done


def test_two_groups_ddp_and_redistribution_together() -> None:
    """With ranks that are late at random: `tests/realtime/test_late_or_lost_in_a_block.py`."""
    done = shared_world(2).run(two_groups, 5)
    assert len(set(done)) == 1
    assert done[0] >= 4
