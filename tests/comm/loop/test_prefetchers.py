"""Loops that ask for batches before they train on those they have: served, and bitwise those without fscomm."""

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock
from zlib import crc32

import pytest
import torch
from exact import Run, compare, flat, new_run
from exact_configs import CONFIGS
from exact_managed import managed, mch
from exact_model import Batch, Config, Table
from prefetchers import PREFETCHERS, lightning, queued
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from worlds import shared_world

from fscomm.engine.steps_in_loop import Steps
from fscomm.exchange.control_word import ControlWords, Mode

STEPS = 18
LEAST = 0.8
MANAGED = Config(
    modules={"b": (Table(name="m", rows=48, sharding="row", features=("m0",)),)},
    static_graph=False,
    builder=managed({"m": mch}),
)


def train(run: Run, loader: Iterable[Batch], prefetch: Callable[[Any], Any] = iter) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(prefetch(comm.lookahead(loader))):
            run.train(step, batch)


def prefetched(prefetch: Callable[[Any], Any], steps: int, run: Run) -> None:
    train(run, run.loader(0, steps), prefetch)


def shares(said: dict[str, Any]) -> list[float]:
    counts = [(each["served"], sum(each["plain"].values())) for each in said["report"]["forwards"].values()]
    return [served / (served + plain) for served, plain in counts]


def counted(rank: int, size: int, config: Config, loop: Callable[[Run], None]) -> tuple[Any, Any, Counter[Mode]]:
    """What `compare` gives, and how often forwards ran in each mode."""
    modes: Counter[Mode] = Counter()
    exchange = ControlWords.exchange

    def counting(*args: Any, **options: Any) -> Any:
        agreed = exchange(*args, **options)
        modes[agreed.mode] += 1
        return agreed

    with mock.patch.object(ControlWords, "exchange", counting):
        found, said = compare(rank, size, config, loop)
    return found, said, modes


@pytest.mark.parametrize("name", PREFETCHERS)
def test_bitwise_and_served(name: str) -> None:
    """All but those announced before the first forward, nearly all with rows that did not become stale meanwhile."""
    for found, said, modes in shared_world(2).run(
        counted, CONFIGS["small"], partial(prefetched, PREFETCHERS[name], STEPS)
    ):
        assert found == []
        assert said["fallbacks"] == {}
        assert min(each["served"] for each in said["report"]["forwards"].values()) >= STEPS - 5
        assert modes[Mode.FAST] >= 0.9 * (STEPS - 5) * len(said["report"]["forwards"]), modes


def ahead_on_one_rank(run: Run) -> None:
    """Step 3 is announced before the first forward on one rank, and after it on the other one."""
    announced, trained = threading.Event(), threading.Event()
    announce = Steps.announce

    def announcing(self: Steps, step: Any, *, elsewhere: bool) -> None:
        announce(self, step, elsewhere=elsewhere)
        if step.number == 3:
            announced.set()

    def loader() -> Iterator[Batch]:
        for number, batch in enumerate(run.loader(0, STEPS)):
            if number == 3 and run.rank == 0:
                assert trained.wait(300)
            if number == 4:
                announced.set()  # in the plain loop, nothing is
            yield batch

    with mock.patch.object(Steps, "announce", announcing), run.enable() as comm:
        for step, batch in enumerate(queued(comm.lookahead(loader()), 3)):
            if run.rank == 1:
                assert announced.wait(300)
            run.train(step, batch)
            trained.set()


def test_a_queue_that_is_further_ahead_on_another_rank_is_no_fallback() -> None:
    for found, said in shared_world(2).run(compare, CONFIGS["small"], ahead_on_one_rank):
        assert found == []
        assert said["fallbacks"] == {}


def nothing_of(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
    weights = kjt.weights_or_none()
    return KeyedJaggedTensor(
        kjt.keys(),
        kjt.values()[:0],
        weights=None if weights is None else weights[:0],
        lengths=torch.zeros_like(kjt.lengths()),
    )


def copies_ids(run: Run) -> None:
    """The model gets other tensors than the batch has, of the same contents; on one rank all ids of some are empty."""
    loaded = run.loader(0, STEPS)
    for number, batch in enumerate(loaded):
        if run.rank == number % 2 == 1 and number > 4:
            batch.ids = {name: nothing_of(kjt) for name, kjt in batch.ids.items()}
    with run.enable() as comm:
        for step, batch in enumerate(lightning(comm.lookahead(loaded), 2)):
            if step > 4 and step % 7 == 0:
                continue
            run.train(step, replace(batch, ids={name: copy.deepcopy(kjt) for name, kjt in batch.ids.items()}))


def test_batches_whose_ids_are_copied_or_that_are_skipped() -> None:
    """What else loops do beside it is a program of `usual_programs.py`."""
    for found, said in shared_world(2).run(compare, CONFIGS["small"], copies_ids):
        assert found == []
        assert min(shares(said)) >= LEAST, (said["report"]["forwards"], said["fallbacks"])


def draws_random_numbers(of_loader: bool, of_step: bool, run: Run) -> None:
    """The loader, the training step (dropout), or both."""
    steps = 7

    def loader() -> Iterator[Batch]:
        for batch in run.loader(0, steps):
            batch.weight = torch.rand(len(batch.weight)) if of_loader else batch.weight
            yield batch

    torch.manual_seed(3)
    with run.enable() as comm:
        for epoch in range(2):
            for step, batch in enumerate(lightning(comm.lookahead(loader()))):
                run.set_rate(step)
                run.optimizer.zero_grad()
                (run.loss(steps * epoch + step, batch) * (torch.rand(()) if of_step else 1)).backward()
                run.optimizer.step()


@pytest.mark.parametrize(("of_loader", "of_step"), [(True, True), (True, False), (False, True)])
def test_random_numbers_are_drawn_in_the_order_of_the_plain_loop(of_loader: bool, of_step: bool) -> None:
    loop = partial(draws_random_numbers, of_loader, of_step)
    for found, said in shared_world(2).run(compare, CONFIGS["small"], loop):
        assert found == []
        assert (min(shares(said)) >= LEAST) == (not (of_loader and of_step))
        assert bool(said["fallbacks"]) == (of_loader and of_step)


ASKS: dict[str, Callable[[Run, Batch], Any]] = {
    "a table": lambda run, _: next(iter(run.tables().values())).detach().pow(2).sum(),
    "an optimizer": lambda run, _: flat(run.model.fused_optimizer.state_dict()),
    "a module": lambda run, batch: run.model(batch).sum(),
}


def asking(run: Run, ask: str, first: int = 0, only: int | None = None) -> Iterator[Batch]:
    """Weighs samples by what the model is now, from batch `first` on; on one rank, or on all."""
    for number, batch in enumerate(run.loader(0, 12)):
        if number >= first and only in (None, run.rank):
            with torch.no_grad():
                batch.weight = batch.weight * (1 + crc32(str(ASKS[ask](run, batch)).encode()) % 7)
        yield batch


def trains_on(ask: str, only: int | None, run: Run) -> None:
    train(run, asking(run, ask, only=only))


@pytest.mark.parametrize(("ask", "only"), [("a table", 1), ("an optimizer", None), ("a module", None)])
def test_a_loader_that_reads_tables_is_asked_in_turn(ask: str, only: int | None) -> None:
    for found, said in shared_world(2).run(compare, CONFIGS["small"], partial(trains_on, ask, only)):
        assert found == []
        assert all("the loader reads served tables" in why for why in said["fallbacks"].values())
        assert max(shares(said)) <= 1 / 12, "the second batch, which was announced before it was known"


def begins_to_ask(rank: int, size: int, ask: str) -> int:
    """How many batches were trained on before the error."""
    run = new_run(rank, size, CONFIGS["small"], "fscomm")
    with pytest.raises(RuntimeError, match="the loader read served tables"):
        train(run, asking(run, ask, first=5))
    return len(run.log)


@pytest.mark.parametrize("ask", ASKS)
def test_a_loader_that_begins_to_read_tables_is_noticed_before_its_batch_is_handed_out(ask: str) -> None:
    assert shared_world(2).run(begins_to_ask, ask) == [5, 5]


def tight_memory(rank: int, size: int) -> None:
    """Two batches of memory in turn are enough for a loop that trains on one while it holds another, but not for three:
    one that was pulled early is the third."""
    run = new_run(rank, size, CONFIGS["small"], "fscomm")
    loaded = run.loader(0, 12)

    def two_in_turn() -> Iterator[Batch]:
        memory = [torch.empty(3), torch.empty(3)]
        for number, batch in enumerate(loaded):
            batch.extra["memory"] = memory[number % 2].fill_(number)
            yield batch

    with pytest.raises(ValueError, match="gave before, or replaced tensors in it"):
        train(run, two_in_turn(), lightning)


def test_memory_of_a_batch_in_hand_that_is_written_is_refused() -> None:
    shared_world(2).run(tight_memory)


@pytest.mark.parametrize(
    ("config", "depth", "why"),
    [
        (CONFIGS["small"], 7, "its forward was not called before 5 more batches were handed out"),
        (MANAGED, 1, "before the batch before it was trained on"),
    ],
    ids=["too deep", "managed collision"],
)
def test_what_is_not_served_says_why_and_what_to_do(config: Config, depth: int, why: str) -> None:
    for found, said in shared_world(2).run(
        compare, config, partial(prefetched, partial(lightning, prefetch_batches=depth), 14)
    ):
        assert found == []
        assert said["fallbacks"]
        for text in said["fallbacks"].values():
            assert why in text
            assert "loop over comm.lookahead(prefetcher)" in text


def in_parts(rank: int, size: int) -> None:
    run = new_run(rank, size, CONFIGS["small"], "fscomm", {"parts": 2, "calls": 1})

    def train() -> None:
        for step in lightning(comm.lookahead(run.loader())):
            for part in step.parts():
                run.model(part).sum().backward()

    with run.enable() as comm, pytest.raises(RuntimeError, match=r"loop over comm\.lookahead\(prefetcher\)"):
        train()


def test_a_step_in_parts_is_over_when_the_next_batch_is_asked_for() -> None:
    shared_world(2).run(in_parts)


def two_threads(rank: int, size: int) -> None:
    """The thread of a queue pulls batches, and the one that trains evaluates over another look-ahead."""
    run = new_run(rank, size, CONFIGS["small"], "fscomm")
    with run.enable() as comm:
        batches = queued(comm.lookahead(run.loader(0, 12)), 2)
        run.train(0, next(batches))
        with pytest.raises(RuntimeError, match="two look-aheads of one block are asked for batches in two threads"):
            next(iter(comm.lookahead(run.loader(20, 24))))
        for step, batch in enumerate(batches, 1):
            run.train(step, batch)
        assert len(list(comm.lookahead(run.loader(20, 24)))) == 4, "the thread has ended"


def test_two_threads_that_pull_are_refused() -> None:
    shared_world(2).run(two_threads)
