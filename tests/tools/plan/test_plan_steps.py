"""What a step takes with a plan, and that the closed form orders plans as the simulated step does."""

import dataclasses

import pytest
from plan_examples import IDEAL
from test_simulate import PAPER_LIKE

from freescale_tools.plan.costs import Parts
from freescale_tools.plan.steps import SHOWN, compute_ms, rated, step_ms

NONE = Parts(ids=0.0, lookup=0.0, rows=0.0, gradients=0.0, apply=0.0, all_reduce=0.0)
RANKS = 64
# Dense gradients take the network, too: without them a step is the compute and what tables add.
ALONE = dataclasses.replace(PAPER_LIKE, dense_parameters=0)


def step(parts, way, load=ALONE):
    return step_ms(parts, IDEAL, load, ranks=RANKS, way=way)["step_ms"]


def test_compute_is_calibrated_or_follows_from_the_operations():
    assert compute_ms(IDEAL, PAPER_LIKE) == pytest.approx(
        1e3 * PAPER_LIKE.flops / (IDEAL.peak_flops * 1e12 * IDEAL.flops_efficiency)
    )
    assert compute_ms(IDEAL, dataclasses.replace(PAPER_LIKE, compute_ms=50.0, fixed_ms=3.0)) == 53.0


def test_a_plain_step_takes_all_parts_longer():
    parts = Parts(ids=3.0, lookup=1.0, rows=20.0, gradients=30.0, apply=2.0, all_reduce=0.0)
    assert step(parts, "plain") - step(NONE, "plain") == pytest.approx(parts.total, rel=1e-6)
    assert rated(parts, compute=100.0, collision=0.5, way="plain") == parts.total


def test_sparse_dist_hides_ids_behind_the_compute():
    ids = dataclasses.replace(NONE, ids=5.0)
    assert step(ids, "sparse dist") == pytest.approx(step(NONE, "sparse dist"), rel=0.01)
    assert rated(ids, compute=5.0, collision=0.0, way="sparse dist") == 0
    assert rated(ids, compute=2.0, collision=0.0, way="sparse dist") == 3.0


def test_prioritized_exposes_collisions_and_what_the_compute_does_not_hide():
    parts = Parts(ids=10.0, lookup=0.0, rows=40.0, gradients=60.0, apply=0.0, all_reduce=7.0)
    assert rated(parts, compute=1000.0, collision=0.25, way="prioritized") == 7 + 25
    assert rated(parts, compute=50.0, collision=0.25, way="prioritized") == 7 + 25 + (10 + 75 - 50)
    few, many = (dataclasses.replace(ALONE, collisions={RANKS: rate}) for rate in (0.1, 0.9))
    assert step(parts, "prioritized", few) < step(parts, "prioritized", many) < step(parts, "plain", few)


def test_a_colliding_row_that_is_used_twice_is_sent_once():
    """Of 10 ms of rows, a tenth is distinct rows that collide; of the gradients, every colliding event has one."""
    load = dataclasses.replace(ALONE, collisions={RANKS: 0.4}, distinct=0.5, colliding_distinct=0.25)
    rows, gradients = dataclasses.replace(NONE, rows=10.0), dataclasses.replace(NONE, gradients=10.0)
    quiet = dataclasses.replace(IDEAL, contention=0.0, memory_contention=0.0)
    none, of_rows, of_gradients = (
        step_ms(one, quiet, load, ranks=RANKS, way="prioritized")["step_ms"] for one in (NONE, rows, gradients)
    )
    assert of_rows - none == pytest.approx(1.0)
    assert of_gradients - none == pytest.approx(4.0)


@pytest.mark.parametrize("way", SHOWN)
def test_what_is_rated_longer_takes_longer(way):
    plans = [dataclasses.replace(NONE, rows=size, gradients=2 * size, ids=size / 9) for size in (10.0, 40.0, 160.0)]
    compute, collision = compute_ms(IDEAL, ALONE), ALONE.collision(RANKS)
    ratings = [rated(one, compute=compute, collision=collision, way=way) for one in plans]
    steps = [step(one, way) for one in plans]
    assert ratings == sorted(ratings)
    assert steps == sorted(steps)
    assert steps[-1] > steps[0]
