"""Parts of tables that are moved from rank to rank: always better, never beyond the memory, never two on one rank."""

from types import SimpleNamespace

import numpy as np
import pytest
from plan_examples import setting, table

from freescale_tools.plan.torchrec import planning
from freescale_tools.plan.torchrec.planning import Machine, _moved

RANKS = 3
CPU = {"device": "cpu", "ranks_per_host": 4, "memory_bytes": 10**9}


class LargestSum:
    """Rates a plan by the rank that has most."""

    def __init__(self):
        self.setting = SimpleNamespace(ranks=RANKS)

    def rate(self, options):
        return float(sums(options, "cost").max())


def sums(options, name):
    found = np.zeros(RANKS)
    for option in options:
        for shard in option.shards:
            found[shard.rank] += getattr(shard, name)
    return found


def option(*costs, ranks, size=1, way="table_wise"):
    shards = [
        SimpleNamespace(rank=rank, cost=cost, hbm=size, storage=SimpleNamespace(hbm=size, ddr=0))
        for cost, rank in zip(costs, ranks, strict=True)
    ]
    return SimpleNamespace(sharding_type=way, shards=shards)


def machine(room):
    return Machine(device="cuda", ranks_per_host=RANKS, memory_bytes=room)


def test_tables_are_exchanged_where_moving_one_does_not_help():
    plan = [option(cost, ranks=[rank]) for cost, rank in ((3, 0), (3, 1), (2, 0), (2, 1), (2, 0), (6, 2))]
    assert sums(_moved(plan, LargestSum(), machine(10**9)), "cost").tolist() == [6, 6, 6]


def test_no_rank_gets_more_than_its_memory():
    """Without the limit the two small tables would go to the ranks that have nothing to do."""
    plan = [option(5, ranks=[0], size=40), option(4, ranks=[0], size=40), option(0, ranks=[1], size=70)]
    plan.append(option(0, ranks=[2], size=70))
    assert sums(_moved(plan, LargestSum(), machine(100)), "cost").tolist() == [9, 0, 0]
    assert sorted(sums(_moved(plan, LargestSum(), machine(10**9)), "cost")) == [0, 4, 5]


def test_the_planner_moves_parts_at_last(monkeypatch):
    moved = []
    monkeypatch.setattr(planning, "_moved", lambda options, *_: moved.append(options) or options)
    planning.chosen_plan([table(), table("b", rows=50)], setting(), Machine(**CPU), lambda found: found.total)
    assert {option.name for option in moved[-1]} == {table().name, "b"}


@pytest.mark.parametrize("seed", range(20))
def test_random_plans_get_better_and_parts_of_a_table_stay_apart(seed):
    random = np.random.default_rng(seed)
    plan = [option(int(random.integers(1, 99)), ranks=[int(random.integers(RANKS))]) for _ in range(8)]
    plan.append(option(30, 30, ranks=[0, 1], way="column_wise"))
    before, whole = LargestSum().rate(plan), sums(plan, "cost").sum()
    after = _moved(plan, LargestSum(), machine(10**9))
    assert LargestSum().rate(after) <= before
    assert sums(after, "cost").sum() == whole
    assert len({shard.rank for shard in after[-1].shards}) == 2
