"""What the recorder adds up, with a clock that the test turns."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from test_meter import Clock
from test_trace import Worker

from fscomm.device import Host
from fscomm.report.recorder import Recorder
from fscomm.report.report import Collisions, Managed
from fscomm.report.verdict import AGREEMENT


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(recorder: Recorder, kind: str, step: int) -> Callable[[], object]:
    """Opens a span in a thread; what is given closes it there."""
    worker, span = Worker("fscomm"), recorder.span(kind, step=step)
    worker.do(span.__enter__)
    return lambda: worker.do(lambda: span.__exit__(None, None, None))


def test_work_on_a_worker_is_hidden_but_for_the_time_that_the_training_thread_waits(clock: Clock) -> None:
    recorder = Recorder(clock=clock)
    close = opened(recorder, "exclusive rows", step=3)
    clock.tick(0.010)
    with recorder.wait("collision rows", step=4):
        clock.tick(0.004)
    clock.tick(0.002)
    close()
    report = recorder.report()
    assert report.total.hidden_ms == pytest.approx({"exclusive rows": 12})
    assert report.total.exposed_ms == pytest.approx({"collision rows": 4})
    assert [step.step for step in report.steps] == [3, 4]
    assert report.steps[0].exposed_ms == {}


@pytest.mark.parametrize("begins_first", ["wait", "span"])
def test_a_span_that_ends_while_somebody_waits_for_it(clock: Clock, begins_first: str) -> None:
    recorder = Recorder(clock=clock)
    if begins_first == "span":
        close = opened(recorder, "ids", step=0)
        clock.tick(0.003)
    with recorder.wait("ids", step=0):
        clock.tick(0.005)
        if begins_first == "wait":
            close = opened(recorder, "ids", step=0)
        clock.tick(0.007)
        close()
    assert recorder.report().total.exposed_ms == pytest.approx({"ids": 12})
    assert recorder.report().total.hidden_ms == pytest.approx({"ids": 3 if begins_first == "span" else 0})


def test_a_wait_inside_a_wait_is_counted_once(clock: Clock) -> None:
    recorder = Recorder(clock=clock)
    with recorder.wait("agreement", step=0):
        clock.tick(0.001)
        with recorder.wait("ids", step=0):
            clock.tick(0.002)
    assert recorder.report().total.exposed_ms == pytest.approx({"agreement": 3, "ids": 0})


def test_agreement_waits_for_a_late_rank(clock: Clock) -> None:
    recorder = Recorder(clock=clock)
    for step, seconds in enumerate((0.0, 0.0075)):
        with recorder.wait(AGREEMENT, step=step):
            clock.tick(seconds)
    report = recorder.report()
    assert [step.straggler_ms for step in report.steps] == pytest.approx([0, 7.5])
    assert report.total.straggler_ms == pytest.approx(7.5)


class SlowDevice(Host):
    """A device that the host runs ahead of, in the time of `clock`: each stream knows when it will have done all that
    was issued to it. Every thread has a stream."""

    runs_ahead = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free: dict[int, float] = {}  # by thread

    @property
    def free(self) -> float:
        """When the calling thread's stream could do what is issued now."""
        return max(self._free.get(threading.get_ident(), 0.0), self._clock())

    def work(self, seconds: float) -> None:
        self._free[threading.get_ident()] = self.free + seconds

    def instant(self) -> float:
        return self.free

    def seconds(self, begin: float, end: float) -> float | None:
        return None if max(begin, end) > self._clock() else end - begin

    def after(self, mark: float) -> None:
        self._free[threading.get_ident()] = max(self.free, mark)


@pytest.mark.parametrize(
    ("compute_s", "rows_s", "blocked_s", "exposed_ms"),
    [
        pytest.param(0.050, 0.020, 0.0, 0, id="rows are there before compute needs them"),
        pytest.param(0.010, 0.045, 0.0, 35, id="the device waits, the host does not"),
        pytest.param(0.010, 0.002, 0.030, 20, id="the host waits, longer than the device has work for"),
        pytest.param(0.040, 0.002, 0.030, 0, id="the host waits, while the device computes"),
    ],
)
def test_on_a_device_exposed_is_what_compute_stands_still(
    clock: Clock, compute_s: float, rows_s: float, blocked_s: float, exposed_ms: float
) -> None:
    """And the rest of the exchange is hidden."""
    device, recorder = SlowDevice(clock), Recorder(clock=clock)
    recorder.runs_on(device)

    def fetch() -> float:
        with recorder.span("exclusive rows", step=1):
            device.work(rows_s)
        return device.free

    with ThreadPoolExecutor(1) as worker:
        device.work(compute_s)
        rows = worker.submit(fetch).result()
        with recorder.wait("exclusive rows", step=1):
            clock.tick(blocked_s)
            device.after(rows)
        clock.tick(max(compute_s, rows_s) + 0.001 - blocked_s)
    total = recorder.report().total
    assert total.exposed_ms == pytest.approx({"exclusive rows": exposed_ms}, rel=0.1)
    beside = min(rows_s, compute_s) if not blocked_s else rows_s
    assert total.hidden_ms == pytest.approx({"exclusive rows": 1e3 * beside}, rel=0.1)
    assert recorder.waited_s == pytest.approx(exposed_ms / 1e3)


def test_waits_of_many_steps_far_ahead_of_the_device(clock: Clock) -> None:
    """The host issues 100 steps at once: times are there once the device has come to them, and little is kept."""
    device, recorder = SlowDevice(clock), Recorder(clock=clock)
    recorder.runs_on(device)
    with ThreadPoolExecutor(1) as worker:
        mark = device.free
        for step in range(100):

            def fetch(step: int = step, behind: float = mark) -> float:
                device.after(behind)
                with recorder.span("collision rows", step=step):
                    device.work(0.010)
                return device.free

            rows = worker.submit(fetch).result()
            device.work(0.004)  # an optimizer step, say
            with recorder.wait("collision rows", step=step), recorder.wait("ids", step=step):
                device.after(rows)
            device.work(0.050)
            mark = device.free
        assert recorder.report().total.exposed_ms == {"ids": 0.0}
        clock.tick(60)
    total = recorder.report().total
    assert total.exposed_ms == pytest.approx({"collision rows": 100 * 6, "ids": 0}, rel=0.01)
    assert total.hidden_ms == pytest.approx({"collision rows": 100 * 4}, rel=0.01)
    assert not recorder._times._work
    assert len(recorder._times._idle) == 1


def test_work_of_the_training_thread_is_inline(clock: Clock) -> None:
    recorder = Recorder(clock=clock)
    with recorder.span("exclusive apply", step=0):
        clock.tick(0.003)
        with recorder.wait("exclusive gradients", step=0):
            clock.tick(0.002)
    total = recorder.report().total
    assert total.inline_ms == pytest.approx({"exclusive apply": 3})
    assert total.exposed_ms == pytest.approx({"exclusive gradients": 2})
    assert total.hidden_ms == {}


def test_time_counts_when_the_work_fails(clock: Clock) -> None:
    recorder = Recorder(clock=clock)

    def failing() -> None:
        clock.tick(0.002)
        raise KeyError

    with pytest.raises(KeyError), recorder.wait("ids", step=0):
        failing()
    with recorder.wait("ids", step=1):
        clock.tick(0.001)
    assert recorder.report().total.exposed_ms == pytest.approx({"ids": 3})


def test_rows_and_bytes_are_added_by_module_and_kind() -> None:
    recorder = Recorder(rank=2)
    recorder.travels_by("gloo", torch.device("cpu"))
    for step in (0, 1):
        recorder.count("a", step, Collisions(occurrences=10, colliding=4, unique=5, unique_colliding=1))
        recorder.count("b", step, Collisions(occurrences=2, colliding=0, unique=2, unique_colliding=0))
        recorder.bytes("a", step, "ids", sent=100, received=50)
        recorder.bytes("a", step, "ids", sent=10, received=5)
        recorder.bytes("b", step, "collision rows", sent=1, received=2)
    report = recorder.report()
    assert report.total.collisions["a"] == Collisions(occurrences=20, colliding=8, unique=10, unique_colliding=2)
    assert report.total.collisions["a"].rate == 0.4
    assert report.total.collisions["a"].unique_rate == 0.2
    assert report.total.collisions["b"].rate == 0
    assert report.steps[0].traffic("ids").sent == 110
    assert report.total.traffic("collision rows").received == 4
    shown = str(report)
    assert "rank 2, mean of 2 steps, rows by gloo\n" in shown
    assert "a: 40.0% of 10 ids a step collide, 20.0% of 5 distinct rows" in shown


def test_what_maps_did_is_added_by_table() -> None:
    recorder = Recorder()
    for step in (0, 1):
        recorder.managed("a.t", step, Managed(ids=1000, hits=600, own=900, late=100, inserted=7, evicted=40))
    report = recorder.report()
    assert report.steps[1].managed["a.t"].evicted == 40
    assert report.total.managed["a.t"].late_share == 0.1
    assert (
        "a.t: 60.0% of 1,000 ids a step hit, 90.0% have a row of their own; 14 free rows given, 80 taken over: 10.0% "
        "of the ids wait for such a row in the forward"
    ) in str(report)


@pytest.mark.parametrize("wrong", [{"colliding": 11}, {"unique": 11}, {"unique_colliding": 5}, {"colliding": -1}])
def test_counts_that_contradict_each_other(wrong: dict[str, int]) -> None:
    given = {"occurrences": 10, "colliding": 4, "unique": 5, "unique_colliding": 1} | wrong
    with pytest.raises(ValueError, match="cannot exceed"):
        Collisions(**given)


def test_the_most_that_the_buffers_of_two_steps_take() -> None:
    recorder = Recorder()
    for nbytes in (10, 30, 5, 20):
        recorder.buffers(nbytes)
    report = recorder.report()
    assert report.buffer_bytes == 40
    assert "buffers of rows that were fetched ahead: at most 0.0 MB" in str(report)


def test_only_the_last_steps_are_kept_but_all_are_summed() -> None:
    recorder = Recorder(keep=5)
    for step in range(40):
        recorder.bytes("a", step, "ids", sent=1, received=0)
    recorder.bytes("a", 2, "ids", sent=1, received=0)  # one that comes late
    report = recorder.report()
    assert [step.step for step in report.steps] == [35, 36, 37, 38, 39]
    assert report.num_steps == 40
    assert report.total.traffic("ids").sent == 41


def test_a_new_step_has_nothing_of_the_one_whose_place_it_takes() -> None:
    """Among more columns than there are to begin with."""
    recorder = Recorder(keep=2)
    for step in (0, 1):
        for module in map(str, range(40)):
            recorder.count(module, step, Collisions(occurrences=step + 1, unique=1))
            recorder.bytes(module, step, "ids", sent=3 + step, received=0)
    with recorder.wait("ids", step=2):
        pass
    recorder.managed("a.t", 2, Managed(ids=5, hits=2))
    recorder.count("7", 0, Collisions(occurrences=10, unique=1))  # too late for its step
    one, two = recorder.report().steps
    assert (one.step, two.step) == (1, 2)
    assert {each.occurrences for each in one.collisions.values()} == {2}
    assert one.traffic("ids").sent == 40 * 4
    assert (two.collisions, two.bytes, two.kinds) == ({}, {}, ["ids"])
    assert (one.managed, two.managed) == ({}, {"a.t": Managed(ids=5, hits=2)})
    total = recorder.report().total
    assert (total.collisions["7"].occurrences, total.collisions["8"].occurrences) == (13, 3)
    assert isinstance(total.collisions["7"].occurrences, int)


def test_a_fallback_keeps_its_first_reason() -> None:
    recorder = Recorder()
    recorder.fallback("over.arch", "pooled")
    recorder.fallback("over.arch", "something later")
    assert recorder.report().fallbacks == {"over.arch": "pooled"}
    assert "over.arch runs plainly: pooled" in str(recorder.report())


def test_many_threads_lose_nothing() -> None:
    recorder = Recorder()

    def work() -> None:
        for step in range(200):
            with recorder.span("ids", step=step):
                recorder.bytes("a", step, "ids", sent=1, received=1)
                recorder.count("a", step, Collisions(occurrences=1, colliding=1, unique=1, unique_colliding=0))

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work) for _ in range(8)]:
            done.result()
    report = recorder.report()
    assert report.total.traffic("ids").sent == 1600
    assert report.total.collisions["a"].occurrences == 1600


@pytest.mark.parametrize(
    ("where", "deterministic", "sure"), [("cpu", False, True), ("cuda", False, False), ("cuda", True, True)]
)
def test_a_report_says_where_the_plain_loop_may_not_repeat(where: str, deterministic: bool, sure: bool) -> None:
    """fbgemm's kernels for CUDA ask torch whether algorithms have to be deterministic."""
    recorder, before = Recorder(), torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        recorder.travels_by("nccl", torch.device(where))
    finally:
        torch.use_deterministic_algorithms(before)
    report = recorder.report()
    assert (report.not_repeated is None) == sure
    assert ("torch.use_deterministic_algorithms(True) in both loops" in str(report)) == (not sure)


def test_a_report_is_frozen_and_plain_json() -> None:
    recorder = Recorder()
    recorder.count("a", 0, Collisions(occurrences=3, colliding=1, unique=2, unique_colliding=1))
    report = recorder.report()
    before = report.to_dict()
    recorder.count("a", 0, Collisions(occurrences=3, colliding=1, unique=2, unique_colliding=1))
    assert report.to_dict() == before
    assert json.loads(json.dumps(before)) == before
    assert before["steps"][0]["collisions"]["a"]["colliding"] == 1
    with pytest.raises(AttributeError):
        report.rank = 3  # type: ignore[misc]


def test_spans_are_ranges_of_a_torch_profile() -> None:
    recorder = Recorder()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with recorder.span("collision apply", step=0):
            torch.ones(3).sum()
        with recorder.wait("ids", step=0):
            pass
    names = [event.name for event in profile.events()]
    assert "fscomm: collision apply" in names
    assert "fscomm: wait for ids" in names
