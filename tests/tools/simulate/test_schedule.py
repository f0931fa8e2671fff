"""The timeline of a step against closed forms, and its scheduler by hand-made schedules."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freescale_tools.model.step import BUCKETS, NOTHING, WAYS, Moves, Task, Work, schedule, timeline


def task(name, lane="a", ms=1.0, after=(), **options):
    return Task(key=(name, 0), lane=lane, ms=ms, after=tuple((other, 0) for other in after), **options)


def spans(runs):
    return {key[0]: (pieces[0][0], pieces[-1][1]) for key, pieces in runs.items()}


def test_lanes_run_side_by_side_and_tasks_wait_for_what_they_need():
    runs = schedule([task("x", ms=3), task("y", "b", 2), task("z", "b", 4, ["x"]), task("w", "a", 0, ["y"])])
    assert spans(runs) == {"x": (0, 3), "y": (0, 2), "z": (3, 7), "w": (3, 3)}


def test_an_urgent_task_interrupts_and_the_rest_goes_on_after_it():
    runs = schedule(
        [task("bulk", ms=10, urgency=3), task("before", "b", 4), task("urgent", "a", 2, ["before"], urgency=0)]
    )
    assert spans(runs) == {"bulk": (0, 12), "before": (0, 4), "urgent": (4, 6)}
    assert runs["bulk", 0] == [(0, 4), (6, 12)]


def test_equally_urgent_tasks_go_in_the_order_in_which_they_became_ready():
    runs = schedule(
        [task("late", ms=1, after=["other"]), task("early", ms=5), task("other", "b", 2), task("next", ms=1)]
    )
    assert spans(runs) == {"early": (0, 5), "other": (0, 2), "next": (5, 6), "late": (6, 7)}


def test_slowed_tasks_take_longer_only_beside_those_that_slow():
    runs = schedule([task("dense", ms=10, slowed=True), task("other", "b", 10), task("nccl", "c", 5.5, slows=0.1)])
    assert {name: end for name, (_, end) in spans(runs).items()} == pytest.approx(
        {"dense": 10.5, "other": 10, "nccl": 5.5}
    )


def test_circles_and_missing_tasks_are_named():
    with pytest.raises(ValueError, match=r"circle.*'x'.*'y'"):
        schedule([task("x", after=["y"]), task("y", after=["x"])])
    with pytest.raises(ValueError, match=r"'x'.*waits for.*'gone'"):
        schedule([task("x", after=["gone"])])


WAY = {way.name: way for way in WAYS}
ALL = Moves(lookup=2.0, rows=30.0, gradients=31.0, apply=3.0)


def part(share):
    return Moves(**{field.name: share * getattr(ALL, field.name) for field in dataclasses.fields(Moves)})


def work(**changed):
    """60 ms forward, 120 backward and 1 of the optimizer; 7 of ids, 66 of rows and gradients, of which 0.3 collide."""
    given = {
        "data": 0.0, "redistribute": 0.0, "forward": 60.0, "backward": 120.0, "optimizer": 1.0, "id_metadata": 5.0,
        "ids": 2.0, "all_reduce": 0.0, "whole": ALL, "collision": part(0.3), "exclusive": part(0.7),
        "straggler": 0.0, "contention": 0.0,
    }  # fmt: skip
    return Work(**{**given, **changed})


def silent(**changed):
    none = {"id_metadata": 0.0, "ids": 0.0, "whole": NOTHING, "collision": NOTHING, "exclusive": NOTHING}
    return work(**{**none, **changed})


@pytest.mark.parametrize("name", ["plain", "all"])
def test_without_communication_a_step_is_the_slowest_ranks_compute(name):
    step = timeline(silent(straggler=0.25), WAY[name])
    assert step["step_ms"] == pytest.approx(181)
    assert step["compute_ms"] == pytest.approx(0.75 * 180 + 1)
    assert step["bubbles"] == pytest.approx({"straggler_ms": 45, "exposed_ms": 0, "contention_ms": 0})


@pytest.mark.parametrize(
    ("name", "exposed"),
    # Collisions wait for no optimizer, which takes 1 ms.
    [("plain", 7 + 66), ("sparse dist", 66), *((name, 0.3 * 66 - 1) for name in ("prioritized", "sm-free", "all"))],
)
def test_what_each_way_exposes(name, exposed):
    step = timeline(work(), WAY[name])
    assert (step["bubbles"]["exposed_ms"], step["step_ms"]) == pytest.approx((exposed, 181 + exposed))


def test_exclusive_traffic_that_does_not_fit_is_exposed():
    slow = Moves(lookup=0.0, rows=150.0, gradients=150.0, apply=0.0)
    step = timeline(silent(collision=part(0.1), exclusive=slow), WAY["prioritized"])
    # The network is never idle: 6.6 ms of collisions and 300 of the others.
    assert (step["step_ms"], step["bubbles"]["exposed_ms"]) == pytest.approx((306.6, 306.6 - 181))


def test_only_the_last_part_of_the_dense_gradients_is_exposed():
    assert timeline(silent(all_reduce=40.0), WAY["plain"])["bubbles"]["exposed_ms"] == pytest.approx(40 / BUCKETS)


@pytest.mark.parametrize(
    ("moved", "lost"),
    [
        (
            {"exclusive": Moves(lookup=0.0, rows=22.0, gradients=33.0, apply=0.0)},
            {"prioritized": 55 - 55 / 1.1, "sm-free": 0},
        ),
        ({"ids": 11.0}, {"sparse dist": 1, "prioritized": 1, "all": 0}),
    ],
    ids=["rows and gradients", "ids"],
)
def test_contention_is_the_time_that_overlapped_compute_loses(moved, lost):
    given = silent(**moved, contention=0.1, optimizer=0.0)
    for name, ms in lost.items():
        assert timeline(given, WAY[name])["bubbles"]["contention_ms"] == pytest.approx(ms), name


def test_a_slow_loader_is_waited_for_and_no_communication_is_blamed():
    step = timeline(silent(data=200.0, redistribute=100.0), WAY["plain"])
    assert (step["step_ms"], step["data_wait_ms"]) == pytest.approx((300, 300 - 181))
    assert step["bubbles"]["exposed_ms"] == pytest.approx(0)


def in_parts(name, parts):
    return dataclasses.replace(WAY[name], parts=parts)


def test_a_step_of_one_part_has_no_pieces_for_later_and_no_cost_of_parts():
    for name in WAY:
        assert timeline(work(later=ALL, part=5.0), in_parts(name, 1)) == timeline(work(), WAY[name])


@pytest.mark.parametrize("parts", [2, 4])
def test_of_a_step_in_parts_first_rows_their_last_gradients_and_the_parts_are_exposed(parts):
    """Other rows and gradients are on the network while a part of 180 / parts ms computes."""
    step = timeline(work(collision=part(0.1), later=part(0.2), part=3.0), in_parts("prioritized", parts))
    assert step["bubbles"]["exposed_ms"] == pytest.approx(0.1 * 66 - 1 + 3 * (parts - 1))


@pytest.mark.parametrize(("name", "exposed"), [("prioritized", 0), ("all", 0), ("plain", 7 + 66)])
def test_where_nothing_collides_or_nobody_prioritizes_parts_bring_nothing_but_their_cost(name, exposed):
    step = timeline(work(collision=NOTHING, part=3.0), in_parts(name, 4))
    assert step["bubbles"]["exposed_ms"] == pytest.approx(exposed + 3 * 3)


def test_pieces_that_do_not_fit_behind_compute_are_exposed():
    """The network is never idle: rows of two parts, gradients of three."""
    slow = silent(later=Moves(lookup=0.0, rows=100.0, gradients=150.0, apply=0.0))
    step = timeline(slow, in_parts("prioritized", 3))
    assert (step["step_ms"], step["bubbles"]["exposed_ms"]) == pytest.approx((650, 650 - 181))


def test_the_cost_of_a_part_hides_behind_rows_that_it_waits_for():
    """Of 2 parts, the second waits from 90 to 130 ms of a step: no cost of up to 40 ms makes the step longer."""
    late = silent(later=dataclasses.replace(NOTHING, rows=130.0))
    steps = [
        timeline(dataclasses.replace(late, part=ms), in_parts("prioritized", 2))["step_ms"] for ms in (0.0, 40.0, 50.0)
    ]
    assert steps == pytest.approx([130 + 90 + 1, 130 + 90 + 1, 140 + 90 + 1])


times = st.floats(0, 50)  # ms
moves = st.builds(Moves, lookup=times, rows=times, gradients=times, apply=times)


@given(
    st.builds(
        Work, data=times, redistribute=times, forward=times, backward=times.map(lambda ms: ms + 1), optimizer=times,
        id_metadata=times, ids=times, all_reduce=times, whole=moves, collision=moves, exclusive=moves,
        straggler=st.floats(0, 0.9), contention=st.floats(0, 0.5), later=moves, part=times,
    ),
    st.builds(dataclasses.replace, st.sampled_from(WAYS), parts=st.integers(1, 3)),
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
