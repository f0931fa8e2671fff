"""Loader and training that draw from the same random numbers, and look-aheads over several loaders at a time."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from lookaheads import Told, ahead
from torch.utils.data import DataLoader

DRAWS = {
    "torch": lambda: float(torch.rand(())),
    "numpy": lambda: float(np.random.random()),
    "python": random.random,
}


class Drawing:
    """A loader whose batches are drawn, if `draws`, from a global generator."""

    def __init__(self, kind: str | None, count: int = 6) -> None:
        self.kind = kind
        self.count = count

    def __iter__(self) -> Iterator[list[float]]:
        for i in range(self.count):
            yield [DRAWS[self.kind]() if self.kind is not None else float(i)]


def played(batches: Any, user: str | None) -> list[Any]:
    """What the loop saw: batches and what the training step drew."""
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    return [(batch, DRAWS[user]() if user is not None else None) for batch in batches]


def early(told: Told) -> list[str]:
    """For every batch handed out: whether another one was announced before."""
    kinds = [event[0] for event in told.events if event[0] in ("announce", "hold")]
    found, ahead_of = [], 0
    for kind in kinds:
        ahead_of += 1 if kind == "announce" else -1
        if kind == "hold":
            found.append(ahead_of > 0)
    return found


@pytest.mark.parametrize("user", [None, "torch", "numpy", "python"])
@pytest.mark.parametrize("loader", [None, "torch", "numpy", "python"])
def test_all_draw_what_they_draw_in_the_plain_loop(loader: str | None, user: str | None) -> None:
    told = Told()
    assert played(ahead(Drawing(loader), told, knows=False), user) == played(Drawing(loader), user)
    both = loader is not None and user is not None
    assert early(told) == [False] + [not both] * 4 + [False]


def test_a_rank_that_draws_holds_all_ranks_back() -> None:
    told = Told()
    told.draws = lambda: True  # another rank said so
    assert list(ahead(["a", "b", "c"], told, knows=False)) == ["a", "b", "c"]
    assert early(told) == [False] * 3


def test_the_second_batch_is_announced_when_the_first_was_trained_on() -> None:
    """By then the features are known."""
    told = Told()
    it = iter(ahead(["a", "b", "c"], told, knows=False))
    assert [next(it), next(it)] == ["a", "b"]
    assert told.events == [
        ("announce", "a"), ("end",), ("hold", "a"), ("announce", "b"), ("announce", "c"), ("hold", "b"),
    ]  # fmt: skip


def test_a_loader_that_begins_to_draw_later_is_told() -> None:
    def loader() -> Iterator[float]:
        yield from (0.0, 1.0, 2.0)
        yield float(torch.rand(()))

    told = Told()
    played(ahead(loader(), told, knows=False), "torch")
    assert told.events.count(("drew early",)) == 1


def test_an_epoch_s_first_batch_is_pulled_in_its_turn() -> None:
    """A shuffled DataLoader draws with the first batch of an epoch; that is not early in any epoch."""
    told = Told()
    look = ahead(DataLoader(list(range(5)), shuffle=True), told, knows=False)
    for _ in range(3):
        played(look, "torch")
    assert early(told) == [False, True, True, True, False] + [True, True, True, True, False] * 2
    assert ("drew early",) not in told.events


def test_a_batch_pulled_in_its_turn_is_kept_until_it_is_held() -> None:
    told = Told(fails_at=("hold", "b"))
    look = ahead(["a", "b", "c"], told, knows=False)
    look._draws.early = False
    it = iter(look)
    assert next(it) == "a"
    with pytest.raises(ConnectionError):
        next(it)
    told._fails_at = None
    assert list(it) == ["b", "c"]


def test_a_stream_of_its_own() -> None:
    """The training step draws as if the loader drew nothing; the loader, as if the step drew nothing."""
    told = Told()
    seen = played(ahead(Drawing("torch"), told, knows=False, rng="own"), "torch")
    assert [drawn for _, drawn in seen] == [drawn for _, drawn in played(Drawing(None), "torch")]
    assert [batch for batch, _ in seen] == [batch for batch, _ in played(Drawing("torch"), None)]
    assert early(told) == [False] + [True] * 4 + [False]
    with pytest.raises(ValueError, match="rng must be 'shared' or 'own', got 'mine'"):
        ahead([], rng="mine")


def test_one_look_ahead_inside_another() -> None:
    """What the outer one had fetched ahead is announced again."""
    told = Told()
    outer, inner = ahead(["a", "b", "c"], told), ahead(["x", "y"], told)
    it = iter(outer)
    assert next(it) == "a"
    assert list(inner) == ["x", "y"]
    told.events.clear()
    assert next(it) == "b"
    assert told.events == [("announce", "b"), ("announce", "c"), ("hold", "b")]
    assert list(it) == ["c"]
