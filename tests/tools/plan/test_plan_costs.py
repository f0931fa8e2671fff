"""Costs of plans against counting rank by rank, and against calculations by hand."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_examples import IDEAL, setting, table

from freescale_tools.plan.costs import Load, Placed, Setting, Shard, by_rank, exchanged, load, parts, shard_cost
from freescale_tools.simulate.schedule.durations import all_reduce, exchange

RANKS, BATCH = 4, 100


def row_wise(of, ranks=RANKS):
    ends = [min(rank * -(-of.rows // ranks), of.rows) for rank in range(ranks + 1)]
    shards = [Shard(rank, ends[rank], ends[rank + 1] - ends[rank], of.dim) for rank in range(ranks)]
    return Placed(table=of, sharding="row_wise", shards=tuple(shards))


def whole(of, rank=0):
    return Placed(table=of, sharding="table_wise", shards=(Shard(rank, 0, of.rows, of.dim),))


def columns(of, *ranks):
    shards = tuple(Shard(rank, 0, of.rows, of.dim // len(ranks)) for rank in ranks)
    return Placed(table=of, sharding="column_wise", shards=shards)


def everywhere(of):
    return Placed(table=of, sharding="data_parallel", shards=())


def counted(placed, ranks=RANKS):
    """The definition: messages from rank to rank. Only shares of rows come from `Table.share`."""
    of = placed.table
    found = {name: np.zeros(ranks) for name in Load.__dataclass_fields__ if name not in ("travelling", "reduced")}
    ids, bags = BATCH * sum(of.ids_per_sample), BATCH * len(of.features)
    for requester, shard in itertools.product(range(ranks), placed.shards):
        share = of.share(shard.first, shard.rows)
        found["looked_up"][shard.rank] += share * ids * shard.dim * of.value_bytes
        partial = of.pooled and placed.sharding == "row_wise"
        vectors = bags if of.pooled else share * ids
        moves = [("ids", requester, shard.rank, 8 * share * ids + 8 * bags)]
        if not partial:
            moves += [
                ("rows", shard.rank, requester, 4 * shard.dim * vectors),
                ("gradients", requester, shard.rank, 4 * shard.dim * vectors),
            ]
        else:  # the vectors of a requester are added up on it; its gradients go to all
            moves += [
                ("rows", shard.rank, requester, 4 * of.dim * bags),
                ("gradients", requester, shard.rank, 4 * of.dim * bags),
            ]
        for name, source, target, size in moves:
            if source != target:
                found[f"{name}_out"][source] += size
                found[f"{name}_in"][target] += size
    return found


USES = st.none() | st.lists(st.integers(0, 9), min_size=4, max_size=8).filter(any)


@given(
    pooled=st.booleans(), uses=USES, way=st.sampled_from(["row", "whole", "columns"]),
    ids=st.lists(st.integers(1, 20), min_size=1, max_size=3), dtype=st.sampled_from(["fp32", "fp16"]),
)  # fmt: skip
def test_loads_are_those_of_messages_from_rank_to_rank(pooled, uses, way, ids, dtype):
    uses = None if uses is None else np.array(uses, float)
    of = table(rows=103, dim=8, pooled=pooled, ids=tuple(map(float, ids)), uses=uses, dtype=dtype)
    placed = {"row": row_wise(of), "whole": whole(of, 2), "columns": columns(of, 3, 1)}[way]
    found, expected = load(placed, setting()), counted(placed)
    assert found.reduced == 0
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(found, name), values, err_msg=name)


def test_gloo_sends_partial_sums_twice():
    placed = row_wise(table(pooled=True))
    once, twice = load(placed, setting()), load(placed, setting(reduce_all=True))
    np.testing.assert_allclose(twice.rows_out, 2 * once.rows_out)
    np.testing.assert_allclose(twice.gradients_out, once.gradients_out)


def test_a_data_parallel_table_sends_its_whole_gradient():
    of = table(rows=50, dim=8, ids=(2.0,))
    found = load(everywhere(of), setting())
    assert found.reduced == 50 * 8 * 4
    np.testing.assert_allclose(found.looked_up, np.full(RANKS, 100 * 2 * 8 * 4))
    assert not any(np.any(getattr(found, name)) for name in Load.__dataclass_fields__ if name.endswith(("in", "out")))


def test_parts_by_hand():
    """Table-wise on rank 0, 100 samples of 10 ids, 8 columns: rank 0 takes and gives three times what others do."""
    found = parts([whole(table())], setting())
    asked, vectors = 3 * (8 * 1000 + 8 * 100), 3 * 4 * 8 * 1000
    assert found.ids == pytest.approx(asked / 1e6)
    assert found.rows == found.gradients == pytest.approx(vectors / 1e6)
    looked_up = 4 * 4 * 8 * 1000
    assert found.lookup == pytest.approx(2 * looked_up / 2e6)
    assert found.apply == pytest.approx(3 * looked_up / 2e6)
    assert found.all_reduce == 0
    assert found.total == pytest.approx(sum(dataclasses.astuple(found)))


def test_senders_alone_count_where_links_take_in_all():
    """Gradients for rank 0: each of the others sends them once."""
    found = parts([whole(table())], setting(receivers_wait=False))
    assert found.gradients == pytest.approx(4 * 8 * 1000 / 1e6)
    assert found.rows == pytest.approx(3 * 4 * 8 * 1000 / 1e6)


def test_cores_that_ranks_share_move_the_bytes_of_all():
    found, base = (parts([whole(table())], setting(**more)) for more in ({"shared_ms_per_mb": 10.0}, {}))
    vectors, asked = 3 * 4 * 8 * 1000, 3 * 8800
    assert found.rows - base.rows == found.gradients - base.gradients == pytest.approx(10 * vectors / 1e6)
    assert found.ids - base.ids == pytest.approx(10 * asked / 1e6)


def test_the_busiest_rank_decides_and_groups_share_the_links():
    one, two = table("a"), table("b")
    apart, together = parts([whole(one, 0), whole(two, 1)], setting()), parts([whole(one), whole(two)], setting())
    # Rank 0 gives table a and asks for table b, so it is as busy as both tables make it, less what it asks itself.
    assert apart.rows == pytest.approx(parts([whole(one)], setting()).rows)
    assert together.rows == pytest.approx(2 * apart.rows)


def test_every_sharding_group_pays_its_latencies():
    late = dataclasses.replace(IDEAL, exchange_latency=1000.0, peer_latency=500.0)  # 2.5 ms of 4 ranks
    one, two = table("a"), table("b", module="other")
    base = parts([whole(one), row_wise(two)], setting())
    found = parts([whole(one), row_wise(two)], setting(hardware=late))
    assert found.ids - base.ids == pytest.approx(2 * 3 * 2.5)
    assert found.rows - base.rows == found.gradients - base.gradients == pytest.approx(2 * 2.5)
    same = parts([whole(one), whole(table("b"), 1)], setting(hardware=late))
    assert same.rows - parts([whole(one), whole(table("b"), 1)], setting()).rows == pytest.approx(2.5)


def test_ids_cost_metadata_only_where_they_travel():
    slow = setting(hardware=dataclasses.replace(IDEAL, id_metadata=1000.0))
    assert parts([whole(table())], slow).ids - parts([whole(table())], setting()).ids == pytest.approx(1.0)
    cut = parts([columns(table(), 0, 1)], slow).ids - parts([columns(table(), 0, 1)], setting()).ids
    assert cut == pytest.approx(2.0)  # once to every part
    assert parts([everywhere(table())], slow).ids == 0
    assert parts([whole(table())], dataclasses.replace(slow, ranks=1)).ids == 0


def test_calibrated_look_ups_and_updates_replace_the_memory():
    found = parts([whole(table())], setting(lookup_ms_per_mb=10.0, apply_ms_per_mb=20.0))
    assert (found.lookup, found.apply) == pytest.approx((10 * 0.128, 20 * 0.128))


def test_a_kernel_takes_a_least_time():
    floor = setting(hardware=dataclasses.replace(IDEAL, kernel_floor=5000.0))
    assert parts([whole(table(rows=10, ids=(1.0,)))], floor).lookup == 5.0
    assert parts([whole(table()), row_wise(table("b"))], floor).lookup == 10.0


def test_data_parallel_gradients_are_reduced_and_updated_whole():
    found = parts([everywhere(table(rows=1000))], setting())
    size = 1000 * 8 * 4
    assert found.all_reduce == pytest.approx(all_reduce(IDEAL, size, RANKS))
    assert (found.ids, found.rows, found.gradients) == (0, 0, 0)
    looked_up = 100 * 10 * 8 * 4
    assert found.apply == pytest.approx((3 * looked_up + 28 / 4 * size) / 2e6)


def test_even_exchanges_are_those_of_the_simulation():
    hardware = dataclasses.replace(IDEAL, exchange_latency=70.0, peer_latency=10.0, exchange_efficiency=0.5)
    of = setting(hardware=hardware)
    size = 4e6  # of a rank, its own part included
    assert exchanged(of, size * 3 / 4, 1) == pytest.approx(exchange(hardware, size, RANKS))
    assert exchanged(of, 0.0, 2) == pytest.approx(0.2)
    assert exchanged(setting(ranks=1), 1e6, 3) == 0


def test_ranks_add_up_to_the_tables():
    plan = [whole(table("a"), 1), row_wise(table("b")), everywhere(table("c"))]
    found = by_rank(plan, setting())
    loads = [load(one, setting()) for one in plan]
    ring = 2 * 3 / 4 * 1000 * 8 * 4
    sent = sum(one.ids_out + one.rows_out + one.gradients_out for one in loads)
    np.testing.assert_allclose(found["sent_bytes"], sent + ring)
    np.testing.assert_allclose(found["sent_bytes"].sum(), found["received_bytes"].sum())
    np.testing.assert_allclose(found["memory_ms"], 5 * sum(one.looked_up for one in loads) / 2e6)


def test_a_shard_costs_what_it_adds_to_its_rank():
    of = table(rows=100, uses=np.array([3.0, 1.0, 0.0, 0.0]))
    hot, warm, cold, _ = (shard_cost(row_wise(of), shard, setting()) for shard in row_wise(of).shards)
    look, rows, update, gradients, ids = hot
    assert (look, update) == pytest.approx((0.75 * 2 * 0.064, 0.75 * 3 * 0.064))
    assert rows == gradients == pytest.approx(0.75 * 0.096)
    assert ids == pytest.approx(3 * (0.75 * 8000 + 800) / 1e6)
    assert warm[:4] == pytest.approx([one / 3 for one in hot[:4]])
    assert cold[:4] == (0, 0, 0, 0)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="ranks = 0"):
        Setting(hardware=IDEAL, ranks=0, batch_size=1)
