"""Time lost to waiting: what is measured, and how predictions are compared with it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from common.history_sets import HistorySet, history_sets  # noqa: E402
from common.ranks import run_ranks  # noqa: E402
from parts.time_lost_rank import Condition, Model, deal  # noqa: E402
from time_lost import time_lost  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from validation.time_lost import against_time_lost  # noqa: E402

from fsdata import Polynomial  # noqa: E402
from fsdata.balance.packing.plan import straggler_share  # noqa: E402

ORDERS = ("file", "shuffled")


def test_time_lost_counts_a_step_by_its_length() -> None:
    seconds = np.array([[1.0, 1.0], [2.0, 6.0]])
    assert time_lost(seconds) == pytest.approx(1 - (1 + 4) / (1 + 6))
    assert np.mean([straggler_share(step) for step in seconds]) == pytest.approx((0 + 1 / 3) / 2)
    assert time_lost(np.full((3, 4), 0.5)) == 0


def flops(length: int) -> int:
    """Operations of forward and backward of one sample."""
    counter = FlopCounterMode(display=False)
    with counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        Model()(torch.arange(length), [length]).backward()
    return counter.get_total_flops()


def test_the_model_takes_quadratic_time() -> None:
    """Operations are counted: seconds would depend on the machine. Their second differences are those of pairs."""
    counted = [flops(length) for length in (256, 512, 768, 1024)]
    second = np.diff(counted, 2)
    assert second[0] == second[1] > 0
    pairs = second[0] / 2 / 256**2
    linear = (counted[0] - pairs * 256**2) / 256
    assert pairs * 512 > linear / 2, "attention is a third and more from 512 events on"


def test_samples_of_a_batch_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    model = Model()
    ids = torch.arange(9)
    both = model(ids, [4, 5])
    one, other = model(ids[:4], [4]), model(ids[4:], [5])
    assert torch.allclose(both, (one + other) / 2)
    assert model(ids[:0], [0, 0]).isfinite()


def test_sets_without_data_are_synthetic_and_the_same_in_every_run(tmp_path: Path) -> None:
    sets, again = (list(history_sets(tmp_path / name, None)) for name in ("a", "b"))
    assert [of.name for of in sets] == ["by_file", "pareto"]
    for one, other in zip(sets, again, strict=True):
        assert [Path(path).read_bytes() for path in one.paths] == [Path(path).read_bytes() for path in other.paths]
    with pytest.raises(FileNotFoundError, match="folders oss_events and online_retail: it has 0 and 0 of them"):
        next(history_sets(tmp_path / "c", tmp_path))


def test_ranks_deal_the_same_samples_plain_and_balanced(tmp_path: Path) -> None:
    by_file = next(history_sets(tmp_path, None))
    few = HistorySet(name="few", paths=by_file.paths[1:2], max_length=40, about="")
    cost = Polynomial(linear=1, quadratic=1)
    plain, balanced = (Condition(of=few, batch_size=8, shuffle=False, cost=of, steps=5) for of in (None, cost))
    ranks = run_ranks(2, deal, [plain, balanced])
    loads = []
    for number in range(2):
        steps = list(zip(*(rank[number] for rank in ranks), strict=True))
        assert len(steps) == 5
        assert all(len(lengths) == 8 and len(ids) == lengths.sum() for step in steps for ids, lengths in step)
        loads.append([[int(cost({"items": lengths}).sum()) for _, lengths in step] for step in steps])
    before, after = np.array(loads)
    assert np.array_equal(before.sum(1), after.sum(1))
    assert time_lost(after) < 0.2 * time_lost(before)
    assert max(int(lengths.max()) for rank in ranks for _, lengths in rank[0]) == 40


def record(lost: dict[str, float]) -> dict[str, Any]:
    """Of one set whose profile predicts 0.30 plain and 0.05 balanced, in both orders."""
    balance = {
        "orders": {order: {"time_lost": {"none": 0.30, "balanced": 0.05}} for order in ORDERS},
        "interval": {"time_lost": {"none": [0.2, 0.32], "balanced": [0.04, 0.06]}},
    }
    rows = [
        {"set": "few", "ranks": 2, "order": order, "batches": batches, "time lost": lost[batches]}
        for order in ORDERS
        for batches in lost
    ]
    return {"rows": rows, "extra": {"profiles": {"few": {"2": balance}}}}


def test_predictions_are_right_within_points_or_inside_their_interval() -> None:
    report = against_time_lost(record({"plain": 0.22, "balanced": 0.10}))
    plain, balanced, *shuffled = report["rows"]
    assert plain["what"] == "few, 2 ranks, file, plain"
    assert (plain["error"], plain["verdict"]) == (pytest.approx(8), "within"), "inside the interval"
    assert (balanced["error"], balanced["verdict"]) == (pytest.approx(-5), "missed")
    assert [one["verdict"] for one in shuffled] == ["within", "missed"]
    assert report["notes"] == [
        "plain: 2 of 2 as asked: 0 within 3 points, 2 inside the interval; error 8.0 points in the median.",
        "balanced: 0 of 2 as asked: 0 within 3 points, 0 inside the interval; error 5.0 points in the median.",
    ]
    near = against_time_lost(record({"plain": 0.33, "balanced": 0.02}))
    assert [one["verdict"] for one in near["rows"]] == ["within"] * 4, "outside the intervals, within 3 points"
