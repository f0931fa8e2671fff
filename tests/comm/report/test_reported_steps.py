"""`enable(on_step=...)`: the numbers of every step, each once, when nothing more is recorded of it."""

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import exact_parts
import pytest
from exact import new_run
from exact_configs import CONFIGS
from test_meter import Clock
from test_record import SlowDevice
from worlds import shared_world

import fscomm
from fscomm.report.recorder import Recorder
from fscomm.report.report import Collisions, StepReport, Traffic

STEPS = 7


def loop(rank, size, case):
    """Two loops in one block: what was reported, after how many steps each, and what the block's own report has."""
    said, threads, trained = [], set(), [0]

    def on_step(numbers):
        said.append((trained[0], numbers))
        threads.add(threading.get_ident())

    run = new_run(rank, size, CONFIGS[case].but(steps=STEPS), "fscomm", {"on_step": on_step})
    with run.enable() as block:
        for _ in range(2):
            for batch in block.lookahead(run.loader()):
                run.train(trained[0], batch)
                trained[0] += 1
    return said, threads == {threading.get_ident()}, block.report()


@pytest.mark.parametrize("case", ["row", "odd tables"])
def test_every_step_is_reported_once_in_order_and_complete(case):
    for said, in_this_thread, report in shared_world(2).run(loop, case):
        assert in_this_thread
        assert [numbers["step"] for _, numbers in said] == list(range(2 * STEPS))
        # Each as the report has it at the end of the block: nothing was recorded of it later.
        assert [numbers for _, numbers in said] == [step.numbers() for step in report.steps]
        # Two steps after it was trained on, or at the end of the block.
        assert [trained for trained, _ in said] == [min(n + 3, 2 * STEPS) for n in range(2 * STEPS)]
        # Gradients of exclusive rows are the last to arrive.
        total = report.total.traffic("exclusive gradients")
        sent = sum(numbers.get("sent_bytes/exclusive gradients", 0) for _, numbers in said)
        assert sent == total.sent > 0
        assert all(type(value) in (int, float) for _, numbers in said for value in numbers.values())


def in_parts(run, comm):
    for step, parts in exact_parts.steps(run, comm, 2):
        exact_parts.train(run, step, parts)


def queued(run, comm):
    """As prefetchers do it: three batches are handed out before the first one is trained on."""
    batches = iter(comm.lookahead(run.loader()))
    waiting = deque(islice(batches, 3))
    for step in range(run.config.steps):
        run.train(step, waiting.popleft())
        waiting.extend(islice(batches, 1))


def other_loop(rank, size, train, options):
    said = []
    run = new_run(rank, size, CONFIGS["small"].but(steps=STEPS), "fscomm", {"on_step": said.append, **options})
    with run.enable() as block:
        train(run, block)
    return said, block.report()


@pytest.mark.parametrize(("train", "options"), [(in_parts, {"parts": 2}), (queued, {})])
def test_steps_in_parts_and_batches_in_a_queue(train, options):
    for said, report in shared_world(2).run(other_loop, train, options):
        assert [numbers["step"] for numbers in said] == list(range(STEPS))
        assert said == [step.numbers() for step in report.steps]
        assert report.total.traffic("exclusive gradients").sent > 0


def failing(rank, size):
    error = KeyError("mine")

    def on_step(numbers):
        if numbers["step"] == 1 and not caught:
            raise error

    caught, seen = [], []
    run = new_run(rank, size, CONFIGS["row"].but(steps=STEPS), "fscomm", {"on_step": on_step})
    with run.enable() as block:
        batches = iter(block.lookahead(run.loader()))
        while True:
            try:
                batch = next(batches)
            except KeyError as raised:
                caught.append(raised is error)
                continue
            except StopIteration:
                break
            run.train(len(seen), batch)
            seen.append(batch)
    return caught, len(seen), block.report().forwards


def test_an_error_of_the_function_reaches_the_loop_which_may_go_on():
    for caught, steps, forwards in shared_world(2).run(failing):
        assert caught == [True]
        assert steps == STEPS
        assert all(each.served >= STEPS - 2 for each in forwards.values())


def leaves(rank, size):
    """A loop that is left by an error: the user's own error comes out, and no report is made behind it."""
    said = []
    run = new_run(rank, size, CONFIGS["row"].but(steps=STEPS), "fscomm", {"on_step": said.append})

    def train():
        with run.enable() as block:
            for step, batch in enumerate(block.lookahead(run.loader())):
                run.train(step, batch)
                if step == 4:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    return [numbers["step"] for numbers in said]


def test_after_an_error_of_the_loop_no_step_is_reported():
    assert shared_world(2).run(leaves) == [[0, 1]] * 2


def test_on_step_is_a_function():
    with pytest.raises(TypeError, match="on_step is a function of a dict of numbers or None, got 3"):
        fscomm.enable(None, on_step=3)


def test_on_a_device_a_step_waits_for_its_streams():
    """The host issues work of all steps at once: each is reported once the device has come to the end of it."""
    clock, said = Clock(), []
    device = SlowDevice(clock)
    recorder = Recorder(clock=clock, on_step=said.append)
    recorder.runs_on(device)
    with ThreadPoolExecutor(1) as worker:
        for step in range(6):
            recorder.begin_step(step)
            recorder.trains(step)
            with recorder.span("plain apply", step=step):
                pass
            worker.submit(work, recorder, device, step).result()
            recorder.report_steps()
            assert said == []
        clock.tick(0.021)  # two steps of 10 ms
        recorder.report_steps()
        assert [(each["step"], each["hidden_ms"]) for each in said] == [(0, pytest.approx(10)), (1, pytest.approx(10))]
        clock.tick(0.060)
        recorder.report_steps()
        assert [each["step"] for each in said] == [0, 1, 2, 3]
        recorder.report_steps(over=True)
        recorder.report_steps(over=True)
        assert [each["step"] for each in said] == list(range(6))


def work(recorder, device, step):
    with recorder.span("exclusive rows", step=step):
        device.work(0.010)


def test_numbers_of_a_step():
    step = StepReport(
        step=3,
        exposed_ms={"ids": 1.0, "collision rows": 2.0},
        unassigned_ms={"ids": 0.5},
        hidden_ms={"exclusive rows": 4.0, "ids": 1.0},
        straggler_ms=0.25,
        bytes={"a": {"ids": Traffic(sent=1, received=2)}, "b": {"ids": Traffic(sent=10), "nothing": Traffic()}},
        collisions={
            "a": Collisions(occurrences=8, colliding=2, unique=8, unique_colliding=2),
            "b": Collisions(occurrences=2, colliding=2, unique=1, unique_colliding=1),
        },
    )
    assert step.numbers() == {
        "step": 3,
        "exposed_ms": 3.5,
        "exposed_ms/ids": 1.5,
        "exposed_ms/collision rows": 2.0,
        "hidden_ms": 5.0,
        "straggler_ms": 0.25,
        "sent_bytes": 11,
        "sent_bytes/ids": 11,
        "received_bytes": 2,
        "received_bytes/ids": 2,
        "collision_rate": 0.4,
    }
    assert "collision_rate" not in StepReport(step=0).numbers()
    assert StepReport(step=0, step_ms=7.0).numbers()["step_ms"] == 7.0
