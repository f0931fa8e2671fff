"""The generator of programs finds every break of the order of table accesses, within as many programs as it plays."""

from typing import Any

import pytest
from exact_configs import configs
from exact_model import Config, Table
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from order_breaks import BREAKS, collision_bags_wait_for_collision_rows_only
from programs import Different, Operation, programs
from test_programs import played
from worlds import WorldError, shared_world

WITHIN = 300
SIZE = 1
POOLED = Config(
    modules={"a": (Table(name="t", rows=41, sharding="table", features=("t0", "t1"), pooling="sum"),)},
    spread=1.0,
    steps=12,
)
SEED = 7
LATE = {  # found after 25 programs or more
    "forwards_in_one_pass_are_not_kept_apart",
    "stale_exclusive_rows_are_used",
    "foreign_features_count_as_announced",
    "a_failed_pass_updates_nothing",
    "rows_fetched_before_a_load_are_used",
    "calls_that_are_not_served_read_what_served_ones_read",
}


def broken(rank: int, size: int, name: str, *program: Any) -> tuple[list[str], list[str], int, int]:
    with BREAKS[name]():
        return played(rank, size, *program)


def programs_until_found(name: str) -> int | None:
    count, found = 0, False
    different = Different()

    @seed(SEED)
    @settings(
        max_examples=WITHIN,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(config=configs(), operations=programs(), chance=st.integers(0, 999))
    def each(config: Config, operations: list[Operation], chance: int) -> None:
        nonlocal count, found
        if found:
            return  # an error would be played once more, and may not come again
        different.check(config, operations)
        count += 1
        try:
            answers = shared_world(SIZE).run(broken, name, config, operations, chance)
        except WorldError:
            found = True
        else:
            found = any(differs or law for differs, law, *_ in answers)

    each()
    return count if found else None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long if n in LATE else ()) for n in BREAKS])
def test_a_break_of_the_order_is_found(name: str, record_property: Any) -> None:
    count = programs_until_found(name)
    record_property("summary", f"{name}: found by program {count}")
    assert count is not None


@pytest.mark.parametrize("broken_order", [False, True])
def test_a_break_of_the_order_of_bags_is_found(broken_order: bool) -> None:
    """By the law alone: one rank is too fast for other results."""
    program = POOLED, [Operation("train_next", 0)] * POOLED.steps, 1
    if broken_order:
        answers = shared_world(SIZE).run(broken_bags, *program)
    else:
        answers = shared_world(SIZE).run(played, *program)
    assert [bool(law) for _, law, *_ in answers] == [broken_order] * SIZE


def broken_bags(rank: int, size: int, *program: Any) -> tuple[list[str], list[str], int, int]:
    with collision_bags_wait_for_collision_rows_only():
        return played(rank, size, *program)
