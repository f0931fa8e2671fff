"""AutoTune: slow ranks get less, every rank comes to the same speeds, and a saved state goes on."""

import json
from dataclasses import replace

import numpy as np
import pytest
from global_batches import global_batch

from fsdata.balance.autotune import UNIT, AutoTune
from fsdata.balance.options import Balance, StepPlanner
from fsdata.balance.packing import Method
from fsdata.errors import StateError

SLOW = np.array([1.0, 1.5, 1.0, 1.0])
AHEAD = 3  # steps between the plan and the report that reaches the next plan: two prefetched, one on its way


def lengths_of(step: int, samples: int = 512) -> np.ndarray:
    rng = np.random.default_rng(step)
    return np.clip(rng.lognormal(np.log(2000), 0.55, samples), 1, 21_000).astype(np.int64)


def run(planner: StepPlanner, cost: object, steps: range) -> list[float]:
    """True straggler share per step of ranks that are `SLOW`, with reports that arrive late."""
    out = []
    reports: dict[int, np.ndarray] = {}
    home = np.repeat(np.arange(4), 128)
    for number in steps:
        batch = global_batch(lengths_of(number), home, step=number)
        if (known := reports.get(number - AHEAD)) is not None:
            times = zip(batch.statuses, known.tolist(), strict=True)
            statuses = (replace(of, compute_step=number - AHEAD, compute_ns=int(time)) for of, time in times)
            batch = replace(batch, statuses=tuple(statuses))
        plan = planner(batch)
        load = np.bincount(plan.rank, weights=cost(batch.lengths), minlength=4)  # type: ignore[operator]
        reports[number] = load * SLOW
        out.append(1 - reports[number].mean() / reports[number].max())
    return out


@pytest.mark.parametrize("method", ["fbs+swap", "vbs", "vbs-contiguous", "repair"])
def test_a_slow_rank_gets_less(method: Method) -> None:
    balance = Balance(method, autotune=True)
    stragglers = run(StepPlanner(balance, 4), balance.cost, range(25))
    assert stragglers[0] > 0.24
    limit = 0.06 if method == "vbs-contiguous" else 0.02  # a cut between samples of one size leaves up to a sample
    assert max(stragglers[20:]) < limit
    fixed = Balance(method)
    assert min(run(StepPlanner(fixed, 4), fixed.cost, range(3))) > 0.2


def test_a_saved_state_goes_on_where_it_was() -> None:
    balance = Balance(autotune=True)
    planner, again = StepPlanner(balance, 4), StepPlanner(balance, 4)
    run(planner, balance.cost, range(25))
    state = json.loads(json.dumps(planner.state_dict()))
    again.load_state_dict(state)
    assert max(run(again, balance.cost, range(25, 30))) < 0.02
    elsewhere = StepPlanner(balance, 3)
    elsewhere.load_state_dict(state)  # speeds belong to ranks: other ranks start anew
    assert elsewhere.state_dict() == StepPlanner(balance, 3).state_dict()
    with pytest.raises(StateError, match="version 9"):
        again.load_state_dict({**state, "version": 9})
    with pytest.raises(StateError, match="not a state of AutoTune"):
        again.load_state_dict({"speeds": []})
    assert StepPlanner(Balance(), 4).state_dict() is None


def test_a_used_planner_goes_on_from_a_state_as_a_new_one() -> None:
    """Also from a state of a run without AutoTune, and of one on another number of ranks."""
    balance = Balance(autotune=True)
    before = StepPlanner(balance, 4)
    run(before, balance.cost, range(20))
    for state in (before.state_dict(), None, StepPlanner(balance, 3).state_dict()):
        used, new = StepPlanner(balance, 4), StepPlanner(balance, 4)
        run(used, balance.cost, range(100, 112))
        used.forget()
        for planner in (used, new):
            planner.load_state_dict(state)
        assert run(used, balance.cost, range(30, 45)) == run(new, balance.cost, range(30, 45))


def test_speeds_are_bounded_and_do_not_depend_on_the_order_of_reports() -> None:
    tunes = [AutoTune(2), AutoTune(2)]
    for number in range(40):
        for tune in tunes:
            tune.planned(number, [1000, 1000])
        reports = [(number, 10**9), (number, 10**5)]
        tunes[0].observe(reports)
        tunes[1].observe([reports[0], (-1, 0)])
        tunes[1].observe([(-1, 0), reports[1]])
    assert tunes[0].state_dict() == tunes[1].state_dict()
    assert tunes[0].speed.tolist() == [0.5, pytest.approx(2.0, abs=0.01)]
    assert tunes[0].state_dict()["speed"][0] == UNIT // 2


def test_without_reports_every_rank_raises() -> None:
    tune = AutoTune(2)
    for number in range(33):
        tune.planned(number, [8, 8])
        if number < 31:
            tune.observe([(number, 5), (-1, 0)])
    with pytest.raises(ValueError, match=r"rank\(s\) 1 reported no compute time in 33 steps. Call loader.report_step"):
        tune.observe([(32, 5), (-1, 0)])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "best"}, "method must be one of 'fbs', 'fbs\\+swap', .*, got 'best'"),
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1 or None"),
        ({"max_tokens": True}, "max_tokens must be an integer of at least 1 or None"),
        ({"method": "hierarchical"}, "needs the ranks per node"),
        ({"ranks_per_node": 2}, "'hierarchical' needs the ranks per node"),
        ({"method": "fbs", "max_tokens": 9}, "cannot keep max_tokens=9"),
        ({"method": "fbs", "autotune": True}, "cannot follow the speed"),
        ({"cost": 3}, "cost must be a cost model"),
    ],
)
def test_bad_options_are_refused(options: dict, match: str) -> None:
    with pytest.raises(TypeError if "cost" in options else ValueError, match=match):
        Balance(**options)


def test_a_plain_function_can_be_the_cost_on_all_ranks() -> None:
    one, other = (Balance(cost=lambda lengths: lengths["uih"]) for _ in range(2))
    assert repr(one) == repr(other)
    assert repr(one).startswith("Balance(method='fbs+swap', cost=<function test_a_plain_function")
    assert repr(Balance(max_tokens=5)) != repr(Balance())


def test_a_sample_above_max_tokens_is_named() -> None:
    lengths = {"uih": [5, 6, 7, 90, 8], "candidates": [1, 1, 1, 2, 1]}
    batch, named = global_batch(lengths, [0, 0, 1, 1, 1], step=4), r"92 elements, row 1 of rank 1's batch \(step 4\)"
    with pytest.raises(ValueError, match=f"longest sample of this step: {named}"):
        StepPlanner(Balance(max_tokens=91), 2)(batch)
    assert StepPlanner(Balance("vbs", max_tokens=92), 2)(batch).rank.tolist().count(1) in (1, 4)
