"""`adapt`: the loop gets the user's own batches; order, states and errors are those of the loader without it."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl
import pytest
import torch
from patience import PATIENCE_S
from rank_loaders import ALL, COST, loader_on, rows_of
from sets import same
from worlds import shared_world

from fscomm.loop.lookahead import Lookahead
from fsdata import Balance, ParquetSource, PeerError, StepStats, global_mean, rebalance
from fsdata.batch.prefetch import pinned
from fsdata.order.progress import Progress
from fsdata.steps.adapt import Made


@dataclass
class Own:
    """A model's batch: no part of it has the type of the loader's."""

    rows: torch.Tensor
    labels: torch.Tensor
    stats: StepStats


def own(batch):
    return Own(batch.features["row"].values(), batch.labels["bought"], batch.stats)


@pytest.fixture
def loader_of(folder):
    made = []

    def make(**options):
        loader = loader_on(folder, prefetch=options.pop("prefetch", 2), **options)
        made.append(loader)
        return loader

    yield make
    for loader in made:
        loader.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_loop_gets_what_adapt_makes(loader_of, prefetch):
    threads = set()

    def adapt(batch):
        threads.add(threading.get_ident())
        return own(batch)

    plain = list(loader_of())
    loader = loader_of(adapt=adapt, prefetch=prefetch)
    adapted = list(loader)
    assert len(adapted) == len(loader) == len(plain)
    for one, two in zip(adapted, plain, strict=True):
        assert type(one) is Own
        assert torch.equal(one.rows, two.features["row"].values())
        assert torch.equal(one.labels, two.labels["bought"])
        assert one.stats == two.stats
    assert (threading.get_ident() in threads) == (prefetch == 0)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_states_are_those_of_the_loader_without_it(loader_of, prefetch):
    options = {"shuffle": True, "shuffle_window": 2, "prefetch": prefetch}
    plain, adapted = loader_of(**options), loader_of(adapt=lambda batch: (batch,), **options)
    batches, states = [], []
    for one, (two,) in zip(plain, adapted, strict=True):
        assert same(one, two)
        assert plain.state_dict() == adapted.state_dict()
        batches.append(one)
        states.append(adapted.state_dict())
    for at in (0, 4, 9):
        again = loader_of(adapt=lambda batch: (batch,), **options)
        again.load_state_dict(states[at])
        rest = [batch for (batch,) in again]
        assert len(rest) == len(batches) - at - 1
        assert all(map(same, rest, batches[at + 1 :]))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_very_error_is_raised_at_its_batch_with_step_and_rank(loader_of, prefetch):
    error = KeyError("no such part")

    def adapt(batch):
        if batch.stats.step == 3:
            raise error
        return own(batch)

    loader = loader_of(adapt=adapt, prefetch=prefetch, rank=1, world_size=2)
    seen = []
    loader.set_epoch(5)
    with pytest.raises(KeyError) as caught:
        seen.extend(batch.stats.step for batch in loader)
    assert seen == [0, 1, 2]
    assert caught.value is error
    assert error.__notes__ == ["adapt=... failed with the batch of step 3 of epoch 5 on rank 1"]
    assert loader.state_dict()["step"] == 3
    loader.set_epoch(0)
    error.__notes__.clear()
    with pytest.raises(KeyError):
        list(loader)
    assert error.__notes__ == ["adapt=... failed with the batch of step 3 of epoch 0 on rank 1"]


def ends(batch):
    raise StopIteration


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    ("adapt", "kind", "message"),
    [(ends, RuntimeError, "adapt raised StopIteration"), (lambda batch: None, TypeError, "adapt returned None")],
)
def test_what_would_end_the_loop_without_a_word_is_an_error(loader_of, adapt, kind, message, prefetch):
    with pytest.raises(kind, match=message):
        list(loader_of(adapt=adapt, prefetch=prefetch))


def test_what_cannot_be_called_is_refused(loader_of):
    with pytest.raises(TypeError, match="adapt is a function of a Batch or None, got 'model'"):
        loader_of(adapt="model")


def test_a_loss_of_the_users_own_batch(loader_of):
    batch = next(iter(loader_of(adapt=own)))
    assert global_mean(batch.labels, batch).item() == batch.labels.sum().item() / 4
    counted = "can be counted over candidates, samples, uih"
    with pytest.raises(ValueError, match=counted):
        global_mean(batch.labels, batch, over="bought")
    with pytest.raises(ValueError, match=r"a tuple has no `stats`: keep those of the Batch in it, stats=batch\.stats"):
        global_mean(batch.labels, (batch.labels,))


class Pair(NamedTuple):
    one: Any
    two: Any


class Pins:
    """Something that pins itself."""

    pins = False

    def pin_memory(self):
        copied = Pins()
        copied.pins = True
        return copied


def test_pinning_reaches_into_batches_of_any_structure():
    stats = StepStats(epoch=0, step=0, world_size=1, samples=1, global_samples=1)
    given = {"own": Own(Pins(), Pins(), stats), "list": [Pins(), 3], "pair": Pair(Pins(), OrderedDict(x=Pins()))}
    given["text"] = "as it is"
    result = pinned(given)
    assert type(result["own"]) is Own
    assert type(result["pair"]) is Pair
    assert result["own"].rows.pins
    assert result["own"].labels.pins
    assert result["own"].stats == stats
    assert result["list"][0].pins
    assert result["list"][1] == 3
    assert result["pair"].one.pins
    assert result["pair"].two["x"].pins
    assert result["text"] == "as it is"
    assert not given["own"].rows.pins
    made = Made({"x": Pins()}, Progress.start(0, 1)).pin_memory()
    assert made.batch["x"].pins
    assert made.progress == Progress.start(0, 1)


def test_a_lookahead_announces_the_users_own_batches(loader_of):
    class Announced:
        """A listener that keeps what is announced."""

        def __init__(self):
            self.batches = []

        def announce(self, batch, *, draws):
            self.batches.append(batch)

        def __getattr__(self, name):
            return lambda *_: False

    announced = Announced()
    loader = loader_of(adapt=own)
    held = list(Lookahead(loader, listener=announced, device=torch.device("cpu")))
    assert len(held) == len(loader)
    assert all(type(batch) is Own for batch in announced.batches)
    assert all(one is two for one, two in zip(held, announced.batches, strict=True))


def fails_on_rank_1(rank, world_size, folder, step, dropping):
    """Kind of error, its text, how many notes it has, steps seen; of a loader whose `adapt` fails on rank 1."""

    def adapt(batch):
        if rank == 1 and batch.stats.step == step:
            raise ValueError("this cannot be adapted")
        return own(batch)

    options = {"adapt": adapt, "batch_size": 8}
    if dropping:
        options["sources"] = ParquetSource(str(folder / "own"), filter=pl.col("row") % 7 != 3)
    else:
        options["balance"] = Balance(cost=COST)
    seen = []
    with loader_on(folder, **options) as loader:
        try:
            for batch in loader:
                seen.append(batch.stats.step)
        except (ValueError, PeerError) as error:
            return type(error).__name__, str(error), len(getattr(error, "__notes__", ())), seen
    return "", "", 0, seen


@pytest.mark.parametrize("dropping", [False, True])
def test_other_ranks_hear_of_an_error(folder, dropping):
    of_rank_0, of_rank_1 = shared_world(2).run(fails_on_rank_1, folder, 1, dropping)
    told = "rank 1 failed at step 2 of epoch 0: ValueError: this cannot be adapted "
    told += "(adapt=... failed with the batch of step 1 of epoch 0 on rank 1)"
    assert of_rank_0 == ("PeerError", told, 0, [0, 1])
    assert of_rank_1 == ("ValueError", "this cannot be adapted", 1, [0])


@pytest.mark.parametrize("dropping", [False, True])
def test_an_error_in_the_last_step_is_told_to_nobody(folder, dropping):
    """Telling it would wait for ranks that never come, and add a note that says so."""
    last = 2 if dropping else 3
    of_rank_0, of_rank_1 = shared_world(2).run(fails_on_rank_1, folder, last, dropping)
    assert of_rank_0 == ("", "", 0, [*range(last + 1)])
    assert of_rank_1 == ("ValueError", "this cannot be adapted", 1, [*range(last)])


def around(rank, world_size, folder):
    """Rows of every step of `rebalance` around a loader with `adapt`, and of a balancing loader with it."""

    def parts(batch):
        return {"row": batch.features["row"].values(), "history": batch.features["item"].lengths()}

    with (
        loader_on(folder, rank=rank, world_size=world_size, adapt=parts) as inner,
        rebalance(inner, lengths=lambda batch: batch["history"], timeout_s=PATIENCE_S) as loader,
    ):
        wrapped = [batch["row"].tolist() for batch in loader]
    with loader_on(folder, balance=Balance(cost=COST), adapt=parts) as loader:
        adapted = [batch["row"].tolist() for batch in loader]
    with loader_on(folder, balance=Balance(cost=COST)) as loader:
        plain = [rows_of(batch) for batch in loader]
    return wrapped, adapted, plain


def test_balancing_goes_before_adapt_and_rebalance_behind_it(folder):
    by_rank = shared_world(2).run(around, folder)
    assert sorted(row for wrapped, _, _ in by_rank for step in wrapped for row in step) == ALL
    assert all(adapted == plain for _, adapted, plain in by_rank)
