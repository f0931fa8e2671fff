"""A module that is called several times in a step: all calls are served, if `enable(calls=...)` tells."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from exact import compare
from exact_configs import CONFIGS
from exact_loops import LOOPS
from exact_model import AGAIN, Batch, build
from patience import PATIENCE_S
from worlds import shared_world

import fscomm
from fscomm.engine.backward import Backward

CONFIG = CONFIGS["called twice"].but(steps=4)


def trained(size: int, options: dict[str, Any]) -> list[tuple[Mapping[str, str], Mapping[str, Any]]]:
    """By rank: what ran plainly and why, and how many forwards of each module were served. Nothing differs."""
    answers = shared_world(size).run(compare, CONFIG, LOOPS["base"], "fscomm", options)
    for found, _ in answers:
        assert found == []
    forwards = [said["report"]["forwards"] for _, said in answers]
    served = [{name: each["served"] for name, each in of_rank.items()} for of_rank in forwards]
    return list(zip((said["fallbacks"] for _, said in answers), served, strict=True))


def first_of_a(batch: Batch) -> Any:
    return batch.ids["a"]


def second_of_a(batch: Batch) -> Any:
    return batch.ids["a" + AGAIN]


@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 3))])
def test_each_call_is_served(size: int) -> None:
    """Those of module b are found in the batch, those of a are told by functions, and so from the first step on."""
    for fallbacks, served in trained(size, {"features": {"embeddings.a": [first_of_a, second_of_a]}}):
        assert fallbacks == {}
        assert served == {"embeddings.a": 2 * CONFIG.steps, "embeddings.b": 2 * (CONFIG.steps - 1)}


@pytest.mark.parametrize("options", [{"calls": 1}, {"features": {"embeddings.a": first_of_a}}], ids=["calls", "told"])
def test_calls_after_the_first_run_plainly_unless_they_are_told_of(options: dict[str, Any]) -> None:
    for fallbacks, served in trained(2, options):
        if "calls" in options:
            assert all("more often for one batch than enable(calls=1) says" in why for why in fallbacks.values())
            assert served == dict.fromkeys(("embeddings.a", "embeddings.b"), CONFIG.steps - 1)
        else:
            assert fallbacks == {}
            assert served["embeddings.a"] == 2 * (CONFIG.steps - 1) + 1


def refused(rank: int, size: int) -> None:
    model, _ = build(CONFIG, size)
    with pytest.raises(ValueError, match=r"features= has 2 functions for embeddings\.a, .*calls=1"):
        fscomm.enable(model, features={"embeddings.a": [first_of_a, second_of_a]}, timeout_s=PATIENCE_S).__enter__()
    with pytest.raises(fscomm.MismatchError, match="calls"):
        fscomm.enable(model, calls=1 + rank, timeout_s=PATIENCE_S).__enter__()
    with fscomm.enable(model, calls=32, timeout_s=PATIENCE_S) as comm:
        why = comm.report().fallbacks["embeddings.b"]
    assert why == "1 modules are served already, 32 calls of each: at most 62 calls can be"


def test_numbers_of_calls_that_cannot_be() -> None:
    shared_world(2).run(refused)


# One module of two groups, called twice: groups 0 and 1 are the first call's, 2 and 3 the second one's.
TWICE: Any = SimpleNamespace(module_of=[0, 0, 1, 1], calls=[range(2), range(2)])


class OneStep:
    hypers = dict.fromkeys(range(4))  # by group


@pytest.mark.parametrize(
    ("reached", "sent"),
    [
        ([2, 3, 0, 1], [(1, [2, 3]), (0, [0, 1])]),
        ([2, 0, 1], [(1, [2]), (0, [0, 1])]),
        ([0, 2, 1, 3], [(0, [0]), (1, [2]), (0, [1]), (1, [3])]),
        ([0, 0, 1], [(0, [0]), (0, [0, 1])]),  # again: it begins anew
    ],
)
def test_gradients_are_sent_in_the_order_in_which_autograd_reaches_the_calls(
    reached: list[int], sent: list[tuple[int, list[int]]]
) -> None:
    step: Any = OneStep()
    out: list[tuple[int, list[int]]] = []
    backward = Backward(TWICE, *[Any] * 3)  # type: ignore[arg-type]
    with (
        mock.patch.object(backward, "reach"),
        mock.patch.object(
            backward, "_send", lambda forward: out.append((forward[1], sorted(backward._gathered.pop(forward))))
        ),
    ):
        for group in reached:
            backward.take_gradient(step, 0, group, torch.zeros(1))
        backward.send_gathered()
    assert out == sent
