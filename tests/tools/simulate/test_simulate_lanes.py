"""The scheduler of lanes, by hand-made schedules."""

import pytest

from freescale_tools.simulate.schedule.lanes import Task, schedule, within


def task(name, lane="a", ms=1.0, after=(), **options):
    return Task(key=(name, 0), lane=lane, ms=ms, after=tuple((other, 0) for other in after), **options)


def spans(runs):
    return {key[0]: (run.start, run.end) for key, run in runs.items()}


def test_lanes_run_side_by_side_and_tasks_wait_for_what_they_need():
    runs = schedule([task("x", ms=3), task("y", "b", 2), task("z", "b", 4, ["x"]), task("w", "a", 1, ["y"])])
    assert spans(runs) == {"x": (0, 3), "y": (0, 2), "z": (3, 7), "w": (3, 4)}


def test_an_urgent_task_interrupts_and_the_rest_goes_on_after_it():
    runs = schedule(
        [task("bulk", ms=10, urgency=3), task("before", "b", 4), task("urgent", "a", 2, ["before"], urgency=0)]
    )
    assert spans(runs) == {"bulk": (0, 12), "before": (0, 4), "urgent": (4, 6)}
    assert runs["bulk", 0].pieces == [(0, 4), (6, 12)]
    assert within(runs["bulk", 0], 3, 8) == [{"start_ms": 0, "ms": 1}, {"start_ms": 3, "ms": 2}]


def test_equally_urgent_tasks_go_in_the_order_in_which_they_became_ready():
    runs = schedule(
        [task("late", ms=1, after=["other"]), task("early", ms=5), task("other", "b", 2), task("next", ms=1)]
    )
    assert spans(runs)["early"] == (0, 5)
    assert spans(runs)["next"] == (5, 6)
    assert spans(runs)["late"] == (6, 7)


def test_slowed_tasks_take_longer_only_beside_those_that_slow():
    tasks = [task("dense", ms=10, slowed=True), task("other", "b", 10), task("nccl", "c", 5.5, slows=0.1)]
    runs = schedule(tasks)
    ends = {name: end for name, (_, end) in spans(runs).items()}
    assert ends == pytest.approx({"dense": 10.5, "other": 10, "nccl": 5.5})


def test_tasks_without_length_take_their_turn():
    runs = schedule([task("x", ms=0), task("y", ms=0, after=["x"]), task("z", ms=2, after=["y"])])
    assert spans(runs) == {"x": (0, 0), "y": (0, 0), "z": (0, 2)}


def test_circles_and_missing_tasks_are_named():
    with pytest.raises(ValueError, match=r"circle.*'x'.*'y'"):
        schedule([task("x", after=["y"]), task("y", after=["x"])])
    with pytest.raises(ValueError, match=r"'x'.*waits for.*'gone'"):
        schedule([task("x", after=["gone"])])
