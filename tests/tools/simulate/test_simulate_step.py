"""The timeline of a step against closed forms."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freescale_tools.simulate.schedule.step import PARTS, WAYS, Moves, Work, timeline

WAY = {way.name: way for way in WAYS}
NOTHING = Moves(lookup=0.0, rows=0.0, gradients=0.0, apply=0.0)
ALL = Moves(lookup=2.0, rows=30.0, gradients=31.0, apply=3.0)


def part(share):
    return Moves(**{field.name: share * getattr(ALL, field.name) for field in dataclasses.fields(Moves)})


def work(**changed):
    given = {
        "data": 0.0, "redistribute": 0.0, "forward": 60.0, "backward": 120.0, "optimizer": 1.0, "id_metadata": 5.0,
        "ids": 2.0, "all_reduce": 0.0, "whole": ALL, "collision": part(0.1), "exclusive": part(0.9),
        "straggler": 0.0, "contention": 0.0,
    }  # fmt: skip
    return Work(**{**given, **changed})


def silent(**changed):
    none = {"id_metadata": 0.0, "ids": 0.0, "whole": NOTHING, "collision": NOTHING, "exclusive": NOTHING}
    return work(**{**none, **changed})


@pytest.mark.parametrize("name", WAY)
def test_without_communication_a_step_is_the_slowest_ranks_compute(name):
    step = timeline(silent(straggler=0.25), WAY[name])
    assert step["step_ms"] == pytest.approx(181)
    assert step["compute_ms"] == pytest.approx(0.75 * 180 + 1)
    assert step["bubbles"] == pytest.approx({"straggler_ms": 45, "exposed_ms": 0, "contention_ms": 0})


def test_plain_training_exposes_every_exchange():
    step = timeline(work(), WAY["plain"])
    assert step["bubbles"]["exposed_ms"] == pytest.approx(5 + 2 + 2 + 30 + 31 + 3)
    assert step["step_ms"] == pytest.approx(181 + 73)


def test_sparse_dist_hides_only_the_ids():
    assert timeline(work(), WAY["sparse dist"])["bubbles"]["exposed_ms"] == pytest.approx(2 + 30 + 31 + 3)


@pytest.mark.parametrize("name", ["prioritized", "sm-free", "all"])
@pytest.mark.parametrize("rate", [0.0, 0.12, 0.3])
def test_prioritized_training_exposes_the_collisions_less_what_the_optimizer_covers(name, rate):
    step = timeline(work(collision=part(rate), exclusive=part(1 - rate)), WAY[name])
    assert step["bubbles"]["exposed_ms"] == pytest.approx(max(rate * (2 + 30 + 31 + 3) - 1, 0))


def test_exclusive_traffic_that_does_not_fit_is_exposed():
    slow = Moves(lookup=0.0, rows=150.0, gradients=150.0, apply=0.0)
    step = timeline(silent(collision=part(0.1), exclusive=slow), WAY["prioritized"])
    # The network is never idle: 6.6 ms of collisions and 300 of the others.
    assert step["step_ms"] == pytest.approx(306.6)
    assert step["bubbles"]["exposed_ms"] == pytest.approx(306.6 - 181)


def test_only_the_last_part_of_the_dense_gradients_is_exposed():
    assert timeline(silent(all_reduce=40.0), WAY["plain"])["bubbles"]["exposed_ms"] == pytest.approx(40 / PARTS)


def test_contention_is_the_time_that_overlapped_compute_loses():
    given = silent(exclusive=Moves(lookup=0.0, rows=22.0, gradients=33.0, apply=0.0), contention=0.1, optimizer=0.0)
    beside = timeline(given, WAY["prioritized"])["bubbles"]
    assert beside == pytest.approx({"straggler_ms": 0, "exposed_ms": 0, "contention_ms": 55 - 55 / 1.1})
    assert timeline(given, WAY["sm-free"])["bubbles"]["contention_ms"] == 0


def test_ids_go_beside_compute_without_slowing_it_where_exchanges_are_sm_free():
    given = silent(ids=11.0, contention=0.1)
    assert timeline(given, WAY["sparse dist"])["bubbles"]["contention_ms"] == pytest.approx(1)
    assert timeline(given, WAY["prioritized"])["bubbles"]["contention_ms"] == pytest.approx(1)
    assert timeline(given, WAY["all"])["bubbles"]["contention_ms"] == 0


def test_a_slow_loader_is_waited_for_and_no_communication_is_blamed():
    step = timeline(silent(data=200.0, redistribute=100.0), WAY["plain"])
    assert step["step_ms"] == pytest.approx(300)
    assert step["data_wait_ms"] == pytest.approx(300 - 181)
    assert step["bubbles"]["exposed_ms"] == pytest.approx(0)


times = st.floats(0, 50)  # ms
moves = st.builds(Moves, lookup=times, rows=times, gradients=times, apply=times)


@given(
    st.builds(
        Work, data=times, redistribute=times, forward=times, backward=times.map(lambda ms: ms + 1), optimizer=times,
        id_metadata=times, ids=times, all_reduce=times, whole=moves, collision=moves, exclusive=moves,
        straggler=st.floats(0, 0.9), contention=st.floats(0, 0.5),
    ),
    st.sampled_from(WAYS),
)  # fmt: skip
def test_compute_data_and_bubbles_add_up_and_lanes_hold_one_thing_at_a_time(work, way):
    step = timeline(work, way)
    parts = step["compute_ms"] + step["data_wait_ms"] + sum(step["bubbles"].values())
    assert parts == pytest.approx(step["step_ms"], abs=1e-6)
    for lane in {piece["lane"] for piece in step["timeline"]}:
        at = 0.0
        for piece in (piece for piece in step["timeline"] if piece["lane"] == lane):
            assert piece["start_ms"] >= at - 1e-6
            at = piece["start_ms"] + piece["ms"]
        assert at <= step["step_ms"] + 1e-6
