"""How long each part takes, against the same sums done by hand."""

import dataclasses

import pytest

from freescale_tools.simulate.hardware.parameters import load_hardware
from freescale_tools.simulate.schedule.durations import exchange, work
from freescale_tools.simulate.schedule.step import WAYS
from freescale_tools.simulate.workload import METHODS, Workload

WAY = {way.name: way for way in WAYS}
NO_LATENCY = dict.fromkeys(("exchange_latency", "peer_latency", "kernel_floor"), 0.0)
FLAT = dataclasses.replace(
    load_hardware("h100-ib"), gpus_per_host=1, gpus_per_nvlink=1, gpus_per_leaf=1, exchange_efficiency=1.0, **NO_LATENCY
)
EVENTS, DIM, RANKS = 100_000, 64, 4
WIRE = 4 * DIM * EVENTS * (RANKS - 1) / RANKS / (FLAT.network * 1e6)
"""Milliseconds of the rows of all events."""
MEMORY = 4 * DIM * EVENTS / (FLAT.memory * 1e6)
"""Milliseconds of one pass over them."""


def load(**changes):
    given = {
        "batch_size": 8, "events": EVENTS, "flops": 1e12, "dim": DIM, "dense_parameters": 0,
        "stragglers": {(RANKS, method): 0.0 for method in METHODS}, "collisions": {RANKS: 0.2},
    }  # fmt: skip
    return Workload(**{**given, **changes})


def made(name, hardware=FLAT, **changes):
    return work(hardware, load(**changes), WAY[name], ranks=RANKS)


def test_without_priorities_a_row_and_a_gradient_go_with_every_event():
    moves = made("sparse dist", distinct=0.5, colliding_distinct=0.25).whole
    assert (moves.rows, moves.gradients) == pytest.approx((WIRE, WIRE))
    assert (moves.lookup, moves.apply) == pytest.approx((2 * MEMORY, 3 * MEMORY))


def test_prioritized_sends_a_row_once_and_the_gradient_of_every_event():
    step = made("prioritized", distinct=0.5, colliding_distinct=0.25)
    assert (step.collision.rows, step.exclusive.rows) == pytest.approx((0.2 * 0.25 * WIRE, (0.5 - 0.05) * WIRE))
    assert (step.collision.gradients, step.exclusive.gradients) == pytest.approx((0.2 * WIRE, 0.8 * WIRE))


def test_deduplicated_gradients_are_as_many_as_rows():
    step = made("all + dedup", distinct=0.5, colliding_distinct=0.25)
    assert step.collision.gradients == step.collision.rows == pytest.approx(0.05 * WIRE)
    assert step.exclusive.apply == pytest.approx(0.45 * 3 * MEMORY)


def test_colliding_rows_are_at_most_all_rows():
    step = made("prioritized", distinct=0.1)
    assert step.collision.rows == pytest.approx(0.1 * WIRE)
    assert step.exclusive.rows == step.exclusive.lookup == 0


@pytest.mark.parametrize(("name", "method"), [("plain", "none"), ("balanced", "fbs+swap")])
def test_an_exchange_lasts_as_long_as_that_of_the_busiest_rank(name, method):
    skews = dict(zip([(RANKS, one) for one in METHODS], (1.5, 1.25), strict=True))
    assert made(name, skews=skews).whole.rows == pytest.approx(skews[RANKS, method] * WIRE)


def test_launches_are_the_least_that_rows_take_and_no_rows_need_none():
    slow = dataclasses.replace(FLAT, kernel_floor=5000.0)
    assert made("prioritized", slow).collision.lookup == 5.0
    none = made("prioritized", slow, collisions={RANKS: 0.0}).collision
    assert (none.lookup, none.rows, none.apply) == (0, 0, 0)


def test_a_way_takes_what_its_remedies_take():
    own = dataclasses.replace(FLAT, own_cost=7.0)
    assert {name: made(name, own, balancing_ms=2.0).own for name in ("plain", "balanced", "prioritized", "all")} == {
        "plain": 0.0, "balanced": 2.0, "prioritized": 7.0, "all": 9.0,
    }  # fmt: skip


def test_bytes_over_a_narrow_spine_take_longer():
    hosts = dataclasses.replace(FLAT, gpus_per_host=2, gpus_per_nvlink=2, gpus_per_leaf=4, oversubscription=3.0)
    size = 8e6
    assert exchange(hosts, size, 4) == pytest.approx(size * 2 / 4 / (hosts.network * 1e6))
    # Of 8 ranks, 4 are behind the spine, which has a third of the bandwidth; 6 are on other hosts.
    assert exchange(hosts, size, 8) == pytest.approx(size * 4 / 8 / (hosts.network * 1e6 / 3))
