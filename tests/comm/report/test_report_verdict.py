"""The first lines of a report, and the spread in its table, with a clock that the test advances."""

from types import SimpleNamespace

import pytest
import torch
from test_meter import Clock

from fscomm.report.recorder import Recorder
from fscomm.report.report import WARM_UP, Collisions, Report
from fscomm.report.verdict import AGREEMENT

MS = 1e-3


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(clock: Clock) -> Recorder:
    recorder = Recorder(clock=clock)
    recorder.travels_by("gloo", torch.device("cpu"))
    return recorder


def train(clock: Clock, recorder: Recorder, step: int, compute_ms: float, **waits_ms: float) -> None:
    """A step of so much compute, and of waits by kind."""
    recorder.begin_step(step)
    recorder.forward("a", 10, 40, None)
    clock.tick(compute_ms * MS)
    for kind, ms in waits_ms.items():
        with recorder.wait(kind.replace("_", " "), step=step):
            clock.tick(ms * MS)


def first_line(report: Report) -> str:
    return str(report).splitlines()[0]


def advice(report: Report) -> list[str]:
    return [line[3:] for line in str(report).splitlines() if line.startswith("-> ")]


def cells(report: Report, kind: str) -> list[str]:
    (row,) = (line for line in str(report).splitlines() if line.startswith(f"{kind:<28}"))
    return row[28:].split()


def test_it_says_how_long_a_step_is_and_what_it_waits_for(clock: Clock, recorder: Recorder) -> None:
    """Means over the steps that are over: also over those that did not wait."""
    for step, waits in enumerate(({"exclusive_rows": 8, AGREEMENT: 8}, {"exclusive_rows": 10})):
        train(clock, recorder, step, 28, **waits)
    train(clock, recorder, 2, 500, collision_rows=100)
    report = recorder.report()
    assert first_line(report) == (
        "step 41 ms; 13 ms (32 %) wait for communication: 9.0 ms exclusive rows (the link is slower than the compute "
        "that hides it), 4.0 ms another rank is late"
    )
    assert [step.step_ms for step in report.steps] == pytest.approx([44, 38, None])
    assert report.total.step_ms == pytest.approx(82)
    assert report.to_dict()["steps"][1]["step_ms"] == pytest.approx(38)


@pytest.mark.parametrize(
    ("late", "who"), [({1: 3.0, 2: 2.0}, "rank 1"), ({1: 3.0, 2: 3.0}, "another rank"), ({}, "another rank")]
)
def test_the_rank_that_is_late_most_of_the_time_is_named(
    late: dict[int, float], who: str, clock: Clock, recorder: Recorder
) -> None:
    for step in range(2):
        train(clock, recorder, step, 8, **{AGREEMENT: 2})
    for rank, ms in late.items():
        recorder.late(rank, ms)
    report = recorder.report()
    assert first_line(report).endswith(f": 2.0 ms {who} is late")
    assert report.to_dict()["late_ms"] == late


def test_a_step_with_a_pause_is_left_out(clock: Clock, recorder: Recorder) -> None:
    for step, compute_ms in enumerate((400, 19, 19, 120, 19, 0)):
        train(clock, recorder, step, compute_ms, ids=400 if step == 3 else 1)
    assert first_line(recorder.report()).startswith("step 20 ms; 1.0 ms (5 %) wait for communication: 1.0 ms ids (")


def test_between_loops_and_without_training_no_step_is_timed(clock: Clock, recorder: Recorder) -> None:
    assert first_line(recorder.report()).startswith("no step is timed yet")
    recorder.begin_loop()
    train(clock, recorder, 0, 10)
    train(clock, recorder, 1, 10)
    clock.tick(60)
    recorder.begin_loop()
    recorder.begin_step(2)  # evaluated
    clock.tick(7)
    train(clock, recorder, 3, 10)
    recorder.begin_step(4)
    recorder.count("a", 2, Collisions())
    assert {step.step: step.step_ms for step in recorder.report().steps} == pytest.approx({0: 10, 2: None, 3: 10})


def test_waits_without_a_step_are_of_the_one_that_the_loop_has(clock: Clock, recorder: Recorder) -> None:
    """In the verdict and the spread: the times by step stay those of the events of the step."""
    for step in range(3):
        train(clock, recorder, step, 7)
        with recorder.span("plain apply"):
            clock.tick(1 * MS)
        for unknown in (None, -1):
            with recorder.wait("exclusive gradients", step=unknown):
                clock.tick(1 * MS)
    recorder.begin_loop()
    with recorder.wait("exclusive gradients"):
        clock.tick(9 * MS)
    report = recorder.report()
    assert first_line(report).startswith("step 10 ms; 2.0 ms (20 %) wait for communication: 2.0 ms exclusive gradients")
    assert report.total.exposed_ms == pytest.approx({"exclusive gradients": 15})
    assert [step.exposed_ms for step in report.steps] == [{}] * 3
    assert [step.unassigned_ms for step in report.steps] == [pytest.approx({"exclusive gradients": 2})] * 3
    assert cells(report, "exclusive gradients")[1:3] == ["2.00", "2.00"]


def test_the_table_has_mean_median_and_p95(clock: Clock, recorder: Recorder) -> None:
    """A step without a wait counts as 0 ms."""
    waits = [0] * 50 + [1] + [2] * 40 + [*range(4, 13), 100]  # the 51st of 101 is the median, the 96th the percentile
    for step, ms in enumerate(waits):
        train(clock, recorder, step, 1, **({"collision_rows": ms} if ms else {}), ids=1)
    report = recorder.report()
    assert cells(report, "collision rows")[:3] == ["2.50", "1.00", "8.00"]
    assert cells(report, "ids")[:3] == ["1.00", "1.00", "1.00"]
    assert cells(report, "all")[:3] == ["3.50", "2.00", "9.00"]


def test_the_control_word_and_the_late_rank_are_one_row(clock: Clock, recorder: Recorder) -> None:
    train(clock, recorder, 0, 10, **{AGREEMENT: 3})
    report = recorder.report()
    assert cells(report, "straggler (control word)")[0] == "3.00"
    assert "agreement" not in str(report)
    assert report.total.exposed_ms == pytest.approx({"agreement": 3})
    assert report.total.straggler_ms == pytest.approx(3)


def test_small_waits_are_summed_up(clock: Clock, recorder: Recorder) -> None:
    waits = {"ids": 10.0, "evicted_rows": 0.9, "collision_rows": 0.8, "exclusive_rows": 0.7}
    for step in range(2):
        train(clock, recorder, step, 37.6, **waits)
    assert first_line(recorder.report()).endswith(
        ": 10 ms ids (the loader of a rank, or the link, is slower than a step), 2.4 ms other waits"
    )


@pytest.mark.parametrize(
    ("kind", "transport", "parts", "words"),
    [
        ("exclusive_rows", "gloo", (1,), 'larger batches, or enable(parts="auto"). On a fast link'),
        ("exclusive_rows", "nccl", (1,), "or a transport that uses no SMs (copy-engine, nccl-ce)"),
        ("exclusive_rows", "nccl-ce", (4,), "larger batches, or a larger number of parts. On"),
        ("exclusive_rows", "gloo", (8, 1), "larger batches. On"),  # the number is still to be chosen
        ("collision_rows", "gloo", (1,), '25 % of the ids collide with the step before: enable(parts="auto") overlaps'),
        ("collision_rows", "gloo", (4,), "before: a larger number of parts overlaps most of their rows"),
        (AGREEMENT, "gloo", (1,), "balance the samples with fsdata.FreeScaleDataLoader, or with fsdata.rebalance"),
        ("ids", "gloo", (1,), "give its loader more threads"),
        ("exclusive_gradients", "gloo", (1,), "read or save tables and run plain forwards less often"),
        ("evicted_rows", "gloo", (1,), "larger tables"),
    ],
)
def test_every_cause_has_a_remedy(
    clock: Clock, recorder: Recorder, kind: str, transport: str, parts: tuple[int, ...], words: str
) -> None:
    recorder.travels_by(transport, torch.device("cpu"))
    recorder.in_parts(SimpleNamespace(chosen=parts[0] if len(parts) == 1 else None, tried=[]), None)
    for step in range(2):
        train(clock, recorder, step, 10, **{kind: 5})
        recorder.count("a", step, Collisions(occurrences=8, colliding=2, unique=4, unique_colliding=2))
    (line,) = advice(recorder.report())
    assert words in line


def test_no_parts_are_advised_where_there_can_be_none(clock: Clock, recorder: Recorder) -> None:
    recorder.in_parts(SimpleNamespace(chosen=1, tried=[]), "static_graph=True")
    for step in range(2):
        train(clock, recorder, step, 10, collision_rows=5, exclusive_rows=6)
    larger, shuffled = advice(recorder.report())
    assert "larger batches. On" in larger
    assert shuffled.endswith("shuffle over more samples")


def test_the_two_largest_waits_are_advised_on(clock: Clock, recorder: Recorder) -> None:
    for step in range(2):
        train(clock, recorder, step, 10, ids=3, collision_rows=5, exclusive_rows=6)
    assert [line.split(" ")[0] for line in advice(recorder.report())] == ["exclusive", "0"]


def test_nothing_to_gain_where_next_to_nothing_is_exposed(clock: Clock, recorder: Recorder) -> None:
    for step in range(2):
        train(clock, recorder, step, 100, ids=1)
    assert first_line(recorder.report()) == "step 101 ms; 1.0 ms (1 %) wait for communication"
    assert advice(recorder.report()) == [
        "nothing to gain on this rank: communication is overlapped. If others wait for a late rank, it may be this one"
    ]


def test_plain_forwards_come_first_with_the_reason_of_most(clock: Clock, recorder: Recorder) -> None:
    for step, why in enumerate([WARM_UP, *["not found"] * 3, *["replaced"] * 2, None, None]):
        train(clock, recorder, step, 10, ids=1)  # a forward of module a is served in each of them
        recorder.forward("b", 1, 4, why)
    plain, loader = advice(recorder.report())
    assert plain == (
        "31 % of the forwards ran plainly, and their exchanges are not in these times. Most of them: not found"
    )
    assert "loader" in loader


def test_where_nothing_is_served_it_says_why() -> None:
    recorder = Recorder()
    assert str(recorder.report()).startswith("nothing is served: no step is timed\nfscomm, rank 0")
    recorder.fallback("embeddings", "pooled")
    assert str(recorder.report()).startswith("nothing is served: no step is timed\n-> pooled\n")
    recorder.forward("embeddings", 1, 4, "no transport")
    assert str(recorder.report()).startswith("nothing is served: no step is timed\n-> no transport\n")
