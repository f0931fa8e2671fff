"""What streams of a device hand to each other is ordered, kept until it was used, and declared (`stream_order.py`).

Schedules are programs of `schedules.py`: a seed draws the loop, the transport, which worker goes on when, and what the
device says it has done.
"""

import pytest
from schedules import Schedule

from fscomm.exchange import stream_order

QUICK = 60


def played(seeds: range) -> tuple[list[str], set[tuple[str, str, str]]]:
    """What was used or freed too early, and the edges that were needed."""
    races, edges = [], set()
    for seed in seeds:
        schedule = Schedule(seed).run()
        races += [f"seed {seed}, {schedule.kind}: {race}" for race in schedule.races]
        edges |= schedule.device.edges
    return races, edges


def test_all_uses_are_ordered_by_declared_edges_and_all_of_these_are_needed() -> None:
    races, edges = played(range(QUICK))
    assert races == []
    assert edges == stream_order.pairs()


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 10_000, 1000))
def test_ten_thousand_schedules(first: int) -> None:
    races, edges = played(range(first, first + 1000))
    assert (races, edges - stream_order.pairs()) == ([], set())
