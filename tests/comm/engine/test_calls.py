"""A module that is called several times in a step: all calls are served, if `enable(calls=...)` tells."""

from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
from exact import compare
from exact_configs import CONFIGS
from exact_loops import LOOPS
from exact_model import AGAIN, Batch, build
from patience import PATIENCE_S
from worlds import shared_world

import fscomm
from fscomm.tables.torchrec import servable

CONFIG = CONFIGS["called twice"].but(steps=4)


def trained(size: int, options: dict[str, Any]) -> list[tuple[Mapping[str, str], Mapping[str, Any]]]:
    """By rank: what ran plainly and why, and the forwards of each module. Nothing differs."""
    answers = shared_world(size).run(compare, CONFIG, LOOPS["base"], "fscomm", options)
    for found, _ in answers:
        assert found == []
    return [(said["fallbacks"], said["report"]["forwards"]) for _, said in answers]


@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 3))])
def test_each_call_is_served(size: int, record_property: Any) -> None:
    for fallbacks, forwards in trained(size, {}):
        assert fallbacks == {}
        assert {name: each["served"] for name, each in forwards.items()} == {
            "embeddings.a": 2 * (CONFIG.steps - 1),
            "embeddings.b": 2 * (CONFIG.steps - 1),
        }
        share = sum(each["served"] for each in forwards.values()) / (4 * CONFIG.steps)
        record_property("summary", f"two calls a step: {share:.0%} of the forwards served")


def test_calls_after_the_first_run_plainly_unless_they_are_told_of() -> None:
    for fallbacks, forwards in trained(2, {"calls": 1}):
        assert all("more often for one batch than enable(calls=1) says" in why for why in fallbacks.values())
        assert all(each["served"] == CONFIG.steps - 1 for each in forwards.values())


def first_of_a(batch: Batch) -> Any:
    return batch.ids["a"]


def second_of_a(batch: Batch) -> Any:
    return batch.ids["a" + AGAIN]


ONE_CALL = [pytest.param(told, marks=pytest.mark.long) for told in (first_of_a, [first_of_a])]


@pytest.mark.parametrize("functions", [[first_of_a, second_of_a], *ONE_CALL])
def test_features_of_the_calls_by_functions(functions: Any) -> None:
    for fallbacks, forwards in trained(2, {"features": {"embeddings.a": functions}}):
        assert fallbacks == {}
        told = len(functions) if isinstance(functions, list) else 1
        assert forwards["embeddings.a"]["served"] == 2 * (CONFIG.steps - 1) + told
        assert forwards["embeddings.b"]["served"] == 2 * (CONFIG.steps - 1)


def refused(rank: int, size: int) -> None:
    model, _ = build(CONFIG, size)
    for calls in (0, 63, 2.5, "2"):
        with pytest.raises(ValueError, match=f"calls must be a number from 1 to 62, got {calls!r}"):
            fscomm.enable(model, calls=calls)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"features= has 2 functions for embeddings\.a, .*calls=1"):
        fscomm.enable(model, features={"embeddings.a": [first_of_a, second_of_a]}, timeout_s=PATIENCE_S).__enter__()


def test_numbers_of_calls_that_cannot_be() -> None:
    shared_world(2).run(refused)


def too_many(rank: int, size: int) -> None:
    model, _ = build(CONFIG, size)
    with mock.patch.object(servable, "MOST_CALLS", 3), fscomm.enable(model, calls=2, timeout_s=PATIENCE_S) as comm:
        why = comm.report().fallbacks["embeddings.b"]
    assert why == "1 modules are served already, 2 calls of each: at most 3 calls can be"


def test_more_calls_than_bits() -> None:
    shared_world(2).run(too_many)


def other_numbers(rank: int, size: int) -> None:
    model, _ = build(CONFIG, size)
    with pytest.raises(fscomm.MismatchError, match="calls"):
        fscomm.enable(model, calls=1 + rank, timeout_s=PATIENCE_S).__enter__()


def test_ranks_that_say_other_numbers() -> None:
    shared_world(2).run(other_numbers)
