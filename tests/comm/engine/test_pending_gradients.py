"""The order in which gradients are sent is that in which autograd reaches the forwards of a module."""

from types import SimpleNamespace
from typing import Any

import torch

from fscomm.engine.pending_gradients import PendingGradients

# One module of two groups, called twice: groups 0 and 1 are the first call's, 2 and 3 the second one's.
TWICE: Any = SimpleNamespace(
    module_of=[0, 0, 1, 1], calls=[range(2), range(2)], sent_with=lambda group: 0 if group < 2 else 1
)


class OneStep:
    hypers = dict.fromkeys(range(4))  # by group


def sent(*reached: int) -> list[tuple[int, list[int]]]:
    """(call, groups) in the order of sending, when autograd reaches these groups."""
    step: Any = OneStep()
    out: list[tuple[int, list[int]]] = []
    pending = PendingGradients(TWICE, lambda _, call, came: out.append((call, sorted(came))))
    for group in reached:
        pending.take(step, group, torch.zeros(1))
    pending.send_rest()
    return out


def test_what_came_for_one_call_is_sent_before_that_of_the_other_call() -> None:
    assert sent(2, 3, 0, 1) == [(1, [2, 3]), (0, [0, 1])]
    assert sent(2, 0, 1) == [(1, [2]), (0, [0, 1])]
    assert sent(0, 2, 1, 3) == [(0, [0]), (1, [2]), (0, [1]), (1, [3])]


def test_a_group_that_is_reached_again_begins_anew() -> None:
    assert sent(0, 0, 1) == [(0, [0]), (0, [0, 1])]
