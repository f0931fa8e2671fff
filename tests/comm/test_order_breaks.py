"""The generator of programs finds every break of the order of table accesses, within as many programs as it plays."""

import contextlib
from typing import Any

import pytest
from exact_configs import configs
from exact_model import Config
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from order_breaks import BREAKS
from programs import Operation, programs
from test_programs import played
from worlds import WorldError, shared_world

WITHIN = 300
SIZE = 1
EASY = ("nothing_waits_for_updates", "plain_updates_at_once", "stale_exclusive_rows_are_used")


class Found(Exception):
    pass


def broken(rank: int, size: int, name: str, *program: Any) -> tuple[list[str], list[str], int, int]:
    with BREAKS[name]():
        return played(rank, size, *program)


def programs_until_found(name: str) -> int:
    count = 0

    @seed(7)
    @settings(
        max_examples=WITHIN,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(config=configs(), operations=programs(), chance=st.integers(0, 999))
    def each(config: Config, operations: list[Operation], chance: int) -> None:
        nonlocal count
        count += 1
        try:
            answers = shared_world(SIZE).run(broken, name, config, operations, chance)
        except WorldError:
            raise Found from None
        if any(found or law for found, law, *_ in answers):
            raise Found

    with contextlib.suppress(Found):
        each()
        raise AssertionError(f"{name}: not found within {WITHIN} programs")
    return count


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in EASY else pytest.mark.full) for n in BREAKS])
def test_a_break_of_the_order_is_found(name: str, record_property: Any) -> None:
    record_property("summary", f"{name}: found by program {programs_until_found(name)}")
