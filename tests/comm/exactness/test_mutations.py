"""The exactness tests can fail: each mutation of the engine is seen, by name, on some rank."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from exact import compare
from exact_loops import LOOPS
from exact_model import Config, Table
from worlds import shared_world

from fscomm.engine import engine
from fscomm.exchange.id_exchange import IdExchange
from fscomm.exchange.row_exchange import RowExchange
from fscomm.torchrec.shadow_kernels import Hyper, Tables

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

Apply = Callable[..., None]
Mutation = Callable[[], contextlib.AbstractContextManager[Any]]
MUTATIONS: dict[str, Mutation] = {}


def mutation(function: Mutation) -> Mutation:
    MUTATIONS[function.__name__] = function
    return function


def applied(change: Callable[..., tuple[torch.Tensor, list[Hyper]] | None], *, collision: bool | None) -> Any:
    """Every update of a class goes through `change(number of the step, received, hypers)`; None drops the update."""
    update, apply = RowExchange.update, Tables.apply
    inside: dict[int, Any] = {}  # by Tables object: each worker has its own

    def marked(self: RowExchange, gradients: Any, *args: Any, **options: Any) -> None:
        for tables in self._tables:
            inside[id(tables)] = (gradients.number, options["collision"])
        update(self, gradients, *args, **options)

    def changed(self: Tables, plan: Any, received: torch.Tensor, hypers: list[Hyper]) -> None:
        step, kind = inside[id(self)]
        given = change(step, received, hypers) if collision in (None, kind) else (received, hypers)
        if given is not None:
            apply(self, plan, *given)

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(RowExchange, "update", marked))
    stack.enter_context(mock.patch.object(Tables, "apply", changed))
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
    compare_steps = IdExchange._compare

    def nothing(*args: Any) -> Any:
        return tuple(
            None if side is None else replace(side, shared=torch.zeros_like(side.shared))
            for side in compare_steps(*args)
        )

    return mock.patch.object(IdExchange, "_compare", nothing)


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

    def backwards(self: Tables, plan: Any, received: torch.Tensor, hypers: list[Hyper]) -> None:
        index, ids = plan.index.clone(), plan.ids.clone()
        for start, end in zip(plan.offsets[:-1].tolist(), plan.offsets[1:].tolist(), strict=True):
            index[start:end], ids[start:end] = plan.index[start:end].flip(0), plan.ids[start:end].flip(0)
        apply(self, replace(plan, index=index, ids=ids), received, hypers)

    return mock.patch.object(Tables, "apply", backwards)


@contextlib.contextmanager
def _none() -> Iterator[None]:
    yield


def mutated(rank: int, size: int, name: str | None) -> list[str]:
    with MUTATIONS[name]() if name is not None else _none():
        found, said = compare(rank, size, CONFIG, LOOPS["base"])
    assert said["fallbacks"] == {}
    return found


def test_without_a_mutation_nothing_differs() -> None:
    assert shared_world(SIZE).run(mutated, None) == [[], []]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_seen(name: str) -> None:
    found = [line for lines in shared_world(SIZE).run(mutated, name) for line in lines]
    where = " iter/" if "counter" in name else " weights/"
    assert any(where in line for line in found), found
