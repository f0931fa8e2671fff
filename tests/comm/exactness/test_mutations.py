"""The exactness tests can fail: each mutation of the engine is seen, by name, on some rank."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from exact import compare
from exact_loops import LOOPS
from exact_model import Config, Table
from worlds import shared_world

from fscomm.engine import engine
from fscomm.exchange.row_exchange import RowExchange
from fscomm.plan import bags
from fscomm.plan.shared_rows import OwnerRows
from fscomm.tables.pooled_tables import PooledTables
from fscomm.tables.shadow_kernels import GroupTables, Hyper, Tables

CONFIG = Config(
    modules={
        "a": (
            Table(name="r", rows=40, sharding="row", features=("r0", "r1")),
            Table(name="t", rows=37, sharding="table", features=("t0",), home=1),
        )
    },
    steps=5,
)
SIZE = 2
POOLED = Config(
    modules={
        "a": (
            Table(name="r", rows=40, sharding="row", features=("r0", "r1"), pooling="sum", columns=64),
            Table(name="t", rows=37, sharding="table", features=("t0",), pooling="mean", home=1),
        )
    },
    max_batch=12,
    max_length=12,
    spread=1.0,
    steps=6,
)
POOLED_SIZE = 3

Apply = Callable[..., None]
Mutation = Callable[[], contextlib.AbstractContextManager[Any]]
MUTATIONS: dict[str, Mutation] = {}
OF_POOLED: dict[str, Mutation] = {}


def mutation(function: Mutation) -> Mutation:
    MUTATIONS[function.__name__] = function
    return function


def of_pooled(function: Mutation) -> Mutation:
    OF_POOLED[function.__name__] = function
    return function


def applied(change: Callable[..., tuple[torch.Tensor, list[Hyper]] | None], *, collision: bool | None) -> Any:
    """Every update of a class goes through `change(number of the step, received, hypers)`; None drops the update."""
    update, apply = RowExchange.update, GroupTables.apply
    inside: dict[int, Any] = {}  # by GroupTables object: each worker has its own

    def marked(self: RowExchange, gradients: Any, *args: Any, **options: Any) -> None:
        for tables in self._tables:
            inside[id(tables)] = (gradients.number, options["collision"])
        update(self, gradients, *args, **options)

    def changed(self: GroupTables, plan: Any, received: torch.Tensor, hypers: list[Hyper], kept: Any = None) -> None:
        step, kind = inside[id(self)]
        given = change(step, received, hypers) if collision in (None, kind) else (received, hypers)
        if given is not None:
            apply(self, plan, *given, kept)

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(RowExchange, "update", marked))
    stack.enter_context(mock.patch.object(GroupTables, "apply", changed))
    return stack


@mutation
def exclusive_gradients_dropped() -> Any:
    return applied(lambda *_: None, collision=False)


@mutation
def collision_gradients_dropped() -> Any:
    return applied(lambda *_: None, collision=True)


@mutation
def gradients_times_world_size() -> Any:
    return applied(lambda _, received, hypers: (received * SIZE, hypers), collision=None)


@mutation
def gradients_shuffled() -> Any:
    return applied(lambda _, received, hypers: (received.roll(1, 0), hypers), collision=None)


@mutation
def last_exclusive_update_dropped() -> Any:
    last = CONFIG.steps - 1
    return applied(lambda step, *given: None if step == last else given, collision=False)


@mutation
def next_rate_for_exclusive_rows() -> Any:
    def later(step: int, received: torch.Tensor, hypers: list[Hyper]) -> tuple[torch.Tensor, list[Hyper]]:
        ratio = (1 + (step + 1) * 7 % 5 / 4) / (1 + step * 7 % 5 / 4)
        return received, [replace(hyper, learning_rate=hyper.learning_rate * ratio) for hyper in hypers]

    return applied(later, collision=False)


@mutation
def rows_shuffled() -> Any:
    lookup = Tables.lookup
    return mock.patch.object(Tables, "lookup", lambda self, plan: lookup(self, plan).roll(1, 0))


@mutation
def collision_set_emptied() -> Any:
    return mock.patch.object(OwnerRows, "mark_common", return_value=None)


@mutation
def counter_advanced_twice() -> Any:
    take = engine.take_hyper

    def twice(kernel: Any) -> Hyper:
        take(kernel)
        return take(kernel)

    return mock.patch.object(engine, "take_hyper", twice)


@mutation
def counter_not_advanced() -> Any:
    def only_read(kernel: Any) -> Hyper:
        return Hyper(
            learning_rate=float(kernel.learning_rate_tensor),
            iteration=int(kernel.iter_cpu),
            arguments=kernel.optimizer_args,
        )

    return mock.patch.object(engine, "take_hyper", only_read)


@mutation
def gradients_of_one_row_added_up_in_another_order() -> Any:
    """Summing the duplicates of a rank before they travel would do this."""
    apply = Tables.apply

    def backwards(self: Tables, plan: Any, received: torch.Tensor, hypers: list[Hyper], kept: None) -> None:
        index, ids = plan.index.clone(), plan.ids.clone()
        for start, end in zip(plan.offsets[:-1].tolist(), plan.offsets[1:].tolist(), strict=True):
            index[start:end], ids[start:end] = plan.index[start:end].flip(0), plan.ids[start:end].flip(0)
        apply(self, replace(plan, index=index, ids=ids), received, hypers)

    return mock.patch.object(Tables, "apply", backwards)


@of_pooled
def mean_kept_in_the_shadow() -> Any:
    """Each class of a bag divides by its own number of ids, not by that of the whole bag."""
    updates = PooledTables.updates

    def averaging(self: PooledTables, *args: Any) -> Iterator[Any]:
        for update in updates(self, *args):
            yield update._replace(weights=None, adding=False) if update.adding else update

    return mock.patch.object(PooledTables, "updates", averaging)


@of_pooled
def parts_added_in_the_order_of_ranks() -> Any:
    return mock.patch.object(bags, "add", lambda parts, _: sum(parts[1:], parts[0]))


@of_pooled
def deferred_rows_of_urgent_bags_dropped() -> Any:
    apply = bags.apply

    def dropping(served: Any, shared: np.ndarray, of_strips: Any, layout: Any) -> Any:
        now, later = apply(served, shared, of_strips, layout)
        kept = later.index < of_strips.total
        return now, replace(later, index=torch.where(kept, len(of_strips.places), later.index))

    return mock.patch.object(bags, "apply", dropping)


@contextlib.contextmanager
def _none() -> Iterator[None]:
    yield


def mutated(rank: int, size: int, config: Config, name: str | None) -> list[str]:
    with (MUTATIONS | OF_POOLED)[name]() if name is not None else _none():
        found, said = compare(rank, size, config, LOOPS["base"])
    assert said["fallbacks"] == {}
    return found


CHEAP = {
    "exclusive_gradients_dropped",
    "collision_gradients_dropped",
    "gradients_of_one_row_added_up_in_another_order",
    "counter_advanced_twice",
    "mean_kept_in_the_shadow",
}


def some(mutations: dict[str, Mutation]) -> list[Any]:
    """Their names; some of them for every run of the tests."""
    return [pytest.param(name, marks=() if name in CHEAP else pytest.mark.long) for name in mutations]


@pytest.mark.parametrize(("size", "config"), [(SIZE, CONFIG), (POOLED_SIZE, POOLED)], ids=["rows", "pooled"])
def test_without_a_mutation_nothing_differs(size: int, config: Config) -> None:
    assert shared_world(size).run(mutated, config, None) == [[]] * size


@pytest.mark.parametrize("name", some(MUTATIONS))
def test_a_mutation_is_seen(name: str) -> None:
    found = [line for lines in shared_world(SIZE).run(mutated, CONFIG, name) for line in lines]
    where = " iter/" if "counter" in name else " weights/"
    assert any(where in line for line in found), found


@pytest.mark.parametrize("name", some(OF_POOLED))
def test_a_mutation_of_pooled_tables_is_seen(name: str) -> None:
    found = [line for lines in shared_world(POOLED_SIZE).run(mutated, POOLED, name) for line in lines]
    assert any(" weights/" in line for line in found), found
