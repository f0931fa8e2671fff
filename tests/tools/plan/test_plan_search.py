"""The search for a plan: as good as trying all of them where these are few, and within the memory of the ranks."""

import dataclasses
import itertools

import numpy as np
import pytest
from plan_examples import IDEAL, everywhere, row_wise, setting, table, whole

from freescale_tools.plan.costs import by_rank, parts, rated
from freescale_tools.plan.search import searched


def some_tables(seed):
    rng = np.random.default_rng(seed)
    uses = [1 / np.arange(1, 41) ** rng.uniform(0, 1.5) for _ in range(4)]
    return [
        table(
            name, rows=int(rng.integers(100, 2000)), dim=int(rng.choice([8, 16, 32])), pooled=bool(seed % 2),
            ids=(float(rng.integers(1, 30)),), uses=used,
        )
        for name, used in zip("abcd", uses, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("way", ["plain", "prioritized"])
@pytest.mark.parametrize("latency", [5.0, 50.0])
def test_it_finds_what_trying_all_plans_finds(way, latency):
    """Nearly: a change of several tables at once can be better than any change of one.

    latency: of an exchange, so that the tables that are cut by rows share what it costs.
    """
    of, over_best = setting(hardware=dataclasses.replace(IDEAL, exchange_latency=latency), ranks=3), []

    def rate(found):
        return rated(found, compute=0.02, collision=0.3, way=way)

    for seed in range(6):
        tables = some_tables(seed)
        ways = [[everywhere(one, 3), whole(one), row_wise(one, 3)] for one in tables]
        every = [[everywhere(one, 3), row_wise(one, 3), *(whole(one, rank) for rank in range(3))] for one in tables]
        best = min(rate(parts(plan, of)) for plan in itertools.product(*every))
        start = [row_wise(one, 3) for one in tables]
        found = rate(parts(searched(ways, start, of, rate), of))
        assert found <= rate(parts(start, of))
        over_best.append(found / best)
    assert min(over_best) >= 1 - 1e-9
    assert sum(over > 1 + 1e-9 for over in over_best) <= 2
    assert max(over_best) < 1.15


def busiest(*, held, room_bytes):
    """(ids that the busiest rank looks up, most bytes of a rank) of 5 + 5 + 4 + 4 + 3 + 3 + 3 ids on three ranks."""
    of = setting(ranks=3, memory_bytes=round(room_bytes / 0.85))
    ways = []
    for place, ids in enumerate((5, 5, 4, 4, 3, 3, 3)):
        one = whole(table(f"t{place}", ids=(float(ids),)))
        (shard,) = one.shards
        ways.append([dataclasses.replace(one, shards=(dataclasses.replace(shard, held_bytes=held[ids]),))])
    start = [
        dataclasses.replace(one, shards=(dataclasses.replace(one.shards[0], rank=rank),))
        for (one,), rank in zip(ways, (0, 1, 2, 2, 0, 1, 2), strict=True)
    ]
    plan = searched(ways, start, of, lambda found: found.lookup)
    ranks = by_rank(plan, of)
    an_id = by_rank([ways[0][0]], of)["memory_ms"].max() / 5
    return pytest.approx(ranks["memory_ms"].max() / an_id), ranks["memory_bytes"].max()


def test_tables_change_ranks_with_each_other_while_that_helps_the_busiest():
    """Heavy tables first, each to the least busy rank, gives 11; only exchanges lead to {5, 4}, {5, 4}, {3, 3, 3}."""
    assert busiest(held={5: 100, 4: 100, 3: 100}, room_bytes=10_000) == (9, 300)


def test_a_plan_that_a_rank_has_no_room_for_is_not_taken():
    assert busiest(held={5: 100, 4: 200, 3: 400}, room_bytes=1201) == (9, 1200)
    assert busiest(held={5: 100, 4: 200, 3: 400}, room_bytes=801) == (11, 800)
