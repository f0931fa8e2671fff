"""`adapt`: the loop gets the user's own batches; order, states and errors are those of the loader without it."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from data_kit import assert_same, same

from fsdata import StepStats, global_mean
from fsdata.batch.prefetch import pinned
from fsdata.nodes.batches import BatchWithProgress
from fsdata.order.progress import Progress


@dataclass
class Own:
    """A model's batch: no part of it has the type of the loader's."""

    rows: torch.Tensor
    labels: torch.Tensor
    stats: StepStats


def own(batch):
    return Own(batch.features["row"].values(), batch.labels["bought"], batch.stats)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_loop_gets_what_adapt_makes_and_states_are_those_without_it(loader_of, prefetch):
    threads = set()

    def adapt(batch):
        threads.add(threading.get_ident())
        return Own(batch.features["row"].values(), batch.labels["bought"], batch.stats), batch

    options = {"shuffle": True, "shuffle_window": 2, "prefetch": prefetch}
    plain, adapted = loader_of(**options), loader_of(adapt=adapt, **options)
    batches, states = [], []
    for one, (own, two) in zip(plain, adapted, strict=True):
        assert torch.equal(own.rows, one.features["row"].values())
        assert same(one, two)
        assert plain.state_dict() == adapted.state_dict()
        batches.append(one)
        states.append(adapted.state_dict())
    assert len(batches) == len(adapted)
    assert (threading.get_ident() in threads) == (prefetch == 0)
    again = loader_of(adapt=adapt, **options)
    again.load_state_dict(states[4])
    assert_same((batch for _, batch in again), batches[5:])


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


def ends(batch):
    raise StopIteration


@pytest.mark.parametrize(
    ("adapt", "kind", "message"),
    [
        (ends, RuntimeError, "adapt raised StopIteration"),  # as it is, it would end the loop without a word
        (lambda batch: None, TypeError, "adapt returned None"),
        ("model", TypeError, "adapt is a function of a Batch or None, got 'model'"),
    ],
)
def test_what_is_no_adapt(loader_of, adapt, kind, message):
    with pytest.raises(kind, match=message):
        list(loader_of(adapt=adapt))


def test_a_loss_of_the_users_own_batch(loader_of):
    batch = next(iter(loader_of(adapt=own)))
    assert global_mean(batch.labels, batch).item() == batch.labels.sum().item() / 4
    with pytest.raises(
        ValueError, match=r"a tuple has no `stats`: copy those of the Batch into it, stats=batch\.stats"
    ):
        global_mean(batch.labels, (batch.labels,))


class Pair(NamedTuple):
    one: Any
    two: Any


@dataclass
class Pins:
    """Something that pins itself."""

    pins: bool = False

    def pin_memory(self):
        return Pins(True)


def test_pinning_reaches_into_batches_of_any_structure():
    def of(pins):
        part = Pins(pins)
        return {"own": Own(part, part, None), "list": [part, 3], "pair": Pair(part, OrderedDict(x=part)), "text": "as"}

    given = of(False)
    assert pinned(given) == of(True)
    assert type(pinned(given)["pair"]) is Pair
    assert given == of(False)
    made = BatchWithProgress({"x": Pins()}, Progress.start(0, 1)).pin_memory()
    assert made == BatchWithProgress({"x": Pins(True)}, Progress.start(0, 1))
