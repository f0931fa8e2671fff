"""Numbers drawn from measured steps, and plans for other numbers of ranks."""

import numpy as np
import pytest

from freescale_tools.demo.measure import WARMUP, Planner, Run, Step, check_same_samples, straggler, summarize


def step(*, compute=1.0, wall=2.0, lengths=(3, 4), checksum=7):
    return Step(wall=wall, compute=compute, wait=0.5, loss=6.0, lengths=np.array(lengths, np.int64), checksum=checksum)


def test_straggler_is_the_share_of_waiting():
    assert straggler(np.array([[1.0, 3.0]])) == pytest.approx(1 / 3)
    assert straggler(np.array([[1.0, 3.0], [10.0, 10.0]])) == pytest.approx(1 - 12 / 13)
    assert straggler(np.array([[2.0, 2.0, 2.0]])) == 0


def test_summary_leaves_the_warm_up_out_of_times():
    warm = [step(compute=100.0, wall=100.0)] * WARMUP
    run = Run(name="x", ranks=[[*warm, step(), step()], [*warm, step(compute=0.5), step(compute=0.5)]])
    found = summarize(run)
    assert found.straggler == pytest.approx(0.25)
    assert found.step_ms == pytest.approx(2_000)
    assert found.tokens_per_s == pytest.approx(14 / 2)
    assert found.wait_ms == pytest.approx(500)
    assert found.last_loss == pytest.approx(3.0)


def test_runs_on_different_samples_are_told_apart():
    first = Run(name="a", ranks=[[step(checksum=1), step(checksum=5)], [step(checksum=2), step(checksum=6)]])
    moved = Run(name="b", ranks=[[step(checksum=2), step(checksum=11)], [step(checksum=1), step(checksum=0)]])
    check_same_samples(first, moved)
    wrong = Run(name="b", ranks=[[step(checksum=2), step(checksum=11)], [step(checksum=1), step(checksum=1)]])
    with pytest.raises(RuntimeError, match="step 1: a and b trained on different samples"):
        check_same_samples(first, wrong)


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


def test_floors_of_a_run_do_not_depend_on_where_samples_were_trained():
    one = Run(name="a", ranks=[[step(lengths=(640, 40))], [step(lengths=(40, 40))]])
    other = Run(name="b", ranks=[[step(lengths=(40, 40))], [step(lengths=(40, 640))]])
    for run in (one, other):
        assert planner(1, 1).floors(run) == pytest.approx([1 - 380 / 680])
