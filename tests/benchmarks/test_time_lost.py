"""Time lost to waiting: what is measured, on which samples."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import shared_world

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from common.history_sets import HistorySet, history_sets  # noqa: E402
from parts.time_lost_rank import Condition, Model, deal  # noqa: E402
from time_lost import time_lost  # noqa: E402

from fsdata import Polynomial  # noqa: E402
from fsdata.balance.packing.plan import straggler_share  # noqa: E402


def test_time_lost_counts_a_step_by_its_length() -> None:
    seconds = np.array([[1.0, 1.0], [2.0, 6.0]])
    assert time_lost(seconds) == pytest.approx(1 - (1 + 4) / (1 + 6))
    assert np.mean([straggler_share(step) for step in seconds]) == pytest.approx((0 + 1 / 3) / 2)
    assert time_lost(np.full((3, 4), 0.5)) == 0


def test_samples_of_a_batch_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    model = Model()
    ids = torch.arange(9)
    both = model(ids, [4, 5])
    one, other = model(ids[:4], [4]), model(ids[4:], [5])
    assert torch.allclose(both, (one + other) / 2)
    assert model(ids[:0], [0, 0]).isfinite()


def dealt(rank: int, size: int, conditions: list[Condition]) -> list[list[Any]]:
    return deal(rank, size, conditions)


def test_ranks_deal_the_same_samples_plain_and_balanced(tmp_path: Path) -> None:
    by_file = next(history_sets(tmp_path, None))
    few = HistorySet(name="few", paths=by_file.paths[1:2], max_length=40, about="")
    cost = Polynomial(linear=1, quadratic=1)
    plain, balanced = (Condition(of=few, batch_size=8, shuffle=False, cost=of, steps=5) for of in (None, cost))
    ranks = shared_world(2).run(dealt, [plain, balanced])
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
