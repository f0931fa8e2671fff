"""Numbers drawn from measured steps, and plans for other numbers of ranks."""

import numpy as np
import pytest

from freescale_tools.demo.outcome.planner import Planner
from freescale_tools.demo.training.measure import WARMUP, Run, Step, check_same_samples, summarize, typical
from fsmeter.intervals import KINDS, BubbleReport, StepTimes

PARTS = dict.fromkeys(KINDS, 0.001) | {"late": 0.5}


def step(*, compute=1.0, wall=2.0, lengths=(3, 4), held=7, checksum=7):
    lengths = np.array(lengths, np.int64)
    return Step(wall=wall, compute=compute, loss=6.0, lengths=lengths, held=held, checksum=checksum)


def run_of(name, *ranks):
    return Run(name=name, ranks=ranks, parts=PARTS, guess=1.5)


def test_summary_leaves_the_warm_up_out_of_times():
    warm = [step(compute=100.0, wall=100.0)] * WARMUP
    run = run_of("x", [*warm, step(), step()], [*warm, step(compute=0.5), step(compute=0.5)])
    found = summarize(run)
    assert found.straggler == pytest.approx(0.25)
    assert found.step_ms == pytest.approx(2_000)
    assert found.exposed_ms == pytest.approx(len(KINDS))
    assert found.late_ms == pytest.approx(500)
    assert found.last_loss == pytest.approx(3.0)
    assert found.ne == pytest.approx(3.0 / 1.5)


def test_entropy_counts_samples_with_something_to_predict():
    run = run_of("x", [step(lengths=(3, 1)), step(lengths=(2, 2))], [step(lengths=(0, 9)), step(lengths=(1, 5))])
    assert run.normalized_entropy() == pytest.approx(24.0 / (5 * 1.5))
    assert run.normalized_entropy(1) == pytest.approx(12.0 / (3 * 1.5))


def test_typical_is_the_mean_over_ranks_and_the_median_over_steps():
    def times(number, rank, ids, late):
        exposed = dict.fromkeys(KINDS, 0.0) | {"ids": ids}
        return StepTimes(step=number, rank=rank, seconds=9, compute=1, data=0, exposed=exposed, straggler=late)

    steps = [(2, 0, 1, 4), (2, 1, 3, 0), (3, 0, 5, 1), (3, 1, 5, 1), (4, 0, 90, 70), (4, 1, 90, 70)]
    found = typical(BubbleReport(world_size=2, steps=tuple(times(*each) for each in steps)))
    assert found == dict.fromkeys(KINDS, 0.0) | {"ids": 5.0, "late": 2.0}


def test_runs_on_different_samples_are_told_apart():
    first = run_of("a", [step(checksum=1), step(checksum=5)], [step(checksum=2), step(checksum=6)])
    moved = run_of("b", [step(checksum=2), step(checksum=11)], [step(checksum=1), step(checksum=0)])
    check_same_samples([first, moved])
    wrong = run_of("c", [step(checksum=2), step(checksum=11)], [step(checksum=1), step(checksum=1)])
    with pytest.raises(RuntimeError, match="step 1: a and c trained on different samples"):
        check_same_samples([first, moved, wrong])


def linear(lengths):
    return lengths["history"]


def planner(*lengths, batch_size=2):
    return Planner(lengths=np.array(lengths, np.int64), cost=linear, name="history", batch_size=batch_size)


def test_planned_shares_of_a_set_small_enough_to_check_by_hand():
    found = planner(1, 1, 9, 9, 5, 5, 5, 5, 100).plan(2)
    assert found.plain == pytest.approx(1 - 20 / 28)
    assert found.balanced == pytest.approx(0.0)
    assert found.floor == pytest.approx(0.0)
    assert planner(1, 1, 9).plan(2) is None


def test_one_giant_sample_is_a_floor_until_it_is_cut():
    giant = planner(40, 40, 40, 640)
    found = giant.plan(2)
    assert found.floor == pytest.approx(1 - 380 / 680)
    assert found.balanced == pytest.approx(found.floor)
    cut = giant.plan_cut(2)
    assert cut.max_length == 32
    assert cut.balanced == pytest.approx(0.0)
    runs = [run_of("a", [step(lengths=(640, 40))], [step(lengths=(40, 40))]),
            run_of("b", [step(lengths=(40, 40))], [step(lengths=(40, 640))])]  # fmt: skip
    for run in runs:
        assert giant.floors(run) == pytest.approx([1 - 380 / 680]), "wherever the samples were trained"
