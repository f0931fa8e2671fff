"""The generator of programs finds breaks of the order of table accesses, within as many programs as it plays.

`tests/realtime/test_late_workers.py` has all of them; some make a rank wait in vain, until a time limit.
"""

from typing import Any

import pytest
from exact_model import Config, Table
from order_breaks import BREAKS, collision_bags_wait_for_collision_rows_only
from patience import PATIENCE_S
from programs import SHORT, Operation
from test_programs import Delay, Given, at_once, given_programs, played
from worlds import WorldError, shared_world

POOLED = Config(
    modules={"a": (Table(name="t", rows=41, sharding="table", features=("t0", "t1"), pooling="sum"),)},
    spread=1.0,
    steps=12,
)
SEED = 7


def broken(rank: int, size: int, name: str, *program: Any) -> tuple[list[str], list[str], int, int]:
    with BREAKS[name]():
        return played(rank, size, *program)


def programs_until_found(name: str, delay: Delay = at_once, limit_s: float = PATIENCE_S) -> int | None:
    count, found = 0, False

    def play_one(program: Given) -> None:
        nonlocal count, found
        if found:
            return  # an error would be played once more, and may not come again
        count += 1
        try:
            answers = shared_world(1).run(broken, name, program, delay, limit_s)
        except WorldError:
            found = True
        else:
            found = any(differs or law for differs, law, *_ in answers)

    given_programs(SHORT, play_one, SEED)
    return count if found else None


def test_a_break_of_the_order_is_found() -> None:
    assert programs_until_found("nothing_waits_for_updates")


@pytest.mark.parametrize("broken_order", [False, True])
def test_a_break_of_the_order_of_bags_is_found(broken_order: bool) -> None:
    """By the law alone: one rank is too fast for other results."""
    case = broken_bags if broken_order else played
    ((_, law, *_),) = shared_world(1).run(case, (POOLED, [Operation("train_next", 0)] * POOLED.steps, 1))
    assert bool(law) == broken_order


def broken_bags(rank: int, size: int, program: Given) -> tuple[list[str], list[str], int, int]:
    with collision_bags_wait_for_collision_rows_only():
        return played(rank, size, program)
