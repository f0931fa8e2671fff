"""Costs of plans against counting rank by rank and against calculations by hand, and the steps that they make."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_examples import IDEAL, columns, everywhere, row_wise, setting, table, whole
from test_simulate import PAPER_LIKE

from freescale_tools.model.durations import all_reduce, exchange
from freescale_tools.plan.costs import (
    GRADIENTS,
    IDS,
    ROWS,
    SHOWN,
    Parts,
    Setting,
    by_rank,
    exchanged,
    load,
    parts,
    rated,
)
from freescale_tools.plan.report import compute_ms, step_ms

RANKS, BATCH = 4, 100


def counted(placed, device):
    """(moved, looked up) by definition: messages from rank to rank. Only shares of rows come from `Table.share`."""
    of = placed.table
    moved, looked_up = np.zeros((3, 2, RANKS)), np.zeros(RANKS)
    ids, bags = BATCH * sum(of.ids_per_sample), BATCH * len(of.features)
    if placed.sharding == "data_parallel":
        return moved, looked_up + ids * of.dim * of.value_bytes
    for requester, shard in itertools.product(range(RANKS), placed.shards):
        share = of.share(shard.first, shard.rows)
        looked_up[shard.rank] += share * ids * shard.dim * of.value_bytes
        partial = of.pooled and placed.sharding == "row_wise"
        # Of partial sums, the vectors of a requester are added up on it, and its gradients go to all.
        vectors = 4 * of.dim * bags if partial else 4 * shard.dim * (bags if of.pooled else share * ids)
        twice = 2 if partial and device == "cpu" else 1
        for kind, source, target, size in (
            (IDS, requester, shard.rank, 8 * share * ids + 8 * bags),
            (ROWS, shard.rank, requester, twice * vectors),
            (GRADIENTS, requester, shard.rank, vectors),
        ):
            if source != target:
                moved[kind, 0, source] += size
                moved[kind, 1, target] += size
    return moved, looked_up


USES = st.none() | st.lists(st.integers(0, 9), min_size=4, max_size=8).filter(any)


@given(
    pooled=st.booleans(), uses=USES, way=st.sampled_from(["row", "whole", "columns", "everywhere"]),
    ids=st.lists(st.integers(1, 20), min_size=1, max_size=3), dtype=st.sampled_from(["fp32", "fp16"]),
    device=st.sampled_from(["cuda", "cpu"]),
)  # fmt: skip
def test_loads_are_those_of_messages_from_rank_to_rank(pooled, uses, way, ids, dtype, device):
    uses = None if uses is None else np.array(uses, float)
    of = table(rows=103, dim=8, pooled=pooled, ids=tuple(map(float, ids)), uses=uses, dtype=dtype)
    placed = {"row": row_wise(of), "whole": whole(of, 2), "columns": columns(of, 3, 1), "everywhere": everywhere(of)}
    found = load(placed[way], setting(device=device))
    assert found.reduced == (103 * 8 * 4 if way == "everywhere" else 0)
    moved, looked_up = counted(placed[way], device)
    np.testing.assert_allclose(found.moved, moved)
    np.testing.assert_allclose(found.looked_up, looked_up)


def test_parts_by_hand():
    """Table-wise on rank 0, 100 samples of 10 ids, 8 columns: rank 0 takes and gives three times what others do."""
    plan = [whole(table())]
    found = parts(plan, setting())
    asked, vectors, looked_up = 3 * (8 * 1000 + 8 * 100), 3 * 4 * 8 * 1000, 4 * 4 * 8 * 1000
    assert found.ids == pytest.approx(asked / 1e6)
    assert found.rows == found.gradients == pytest.approx(vectors / 1e6)
    assert (found.lookup, found.apply) == pytest.approx((2 * looked_up / 2e6, 3 * looked_up / 2e6))
    assert found.all_reduce == 0
    assert found.total == pytest.approx(sum(dataclasses.astuple(found)))
    # Senders alone count where links take in all: each of the others sends its gradients once.
    alone = parts(plan, setting(receivers_wait=False))
    assert (alone.gradients, alone.rows) == pytest.approx((vectors / 3e6, vectors / 1e6))
    # Cores that ranks share move the bytes of all.
    shared = parts(plan, setting(shared_ms_per_mb=10.0))
    assert shared.rows - found.rows == shared.gradients - found.gradients == pytest.approx(10 * vectors / 1e6)
    assert shared.ids - found.ids == pytest.approx(10 * asked / 1e6)
    calibrated = parts(plan, setting(lookup_ms_per_mb=10.0, apply_ms_per_mb=20.0))
    assert (calibrated.lookup, calibrated.apply) == pytest.approx((10 * 0.128, 20 * 0.128))
    with pytest.raises(ValueError, match="ranks = 0"):
        Setting(hardware=IDEAL, ranks=0, batch_size=1)


def test_the_busiest_rank_decides_and_groups_share_the_links():
    one, two = table("a"), table("b")
    apart, together = parts([whole(one, 0), whole(two, 1)], setting()), parts([whole(one), whole(two)], setting())
    # Rank 0 gives table a and asks for table b, so it is as busy as both tables make it, less what it asks itself.
    assert apart.rows == pytest.approx(parts([whole(one)], setting()).rows)
    assert together.rows == pytest.approx(2 * apart.rows)


def test_every_sharding_group_pays_its_latencies_and_kernels():
    late = dataclasses.replace(IDEAL, exchange_latency=1000.0, peer_latency=500.0)  # 2.5 ms of 4 ranks
    one, two = table("a"), table("b", module="other")
    base = parts([whole(one), row_wise(two)], setting())
    found = parts([whole(one), row_wise(two)], setting(hardware=late))
    assert found.ids - base.ids == pytest.approx(2 * 3 * 2.5)
    assert found.rows - base.rows == found.gradients - base.gradients == pytest.approx(2 * 2.5)
    same = parts([whole(one), whole(table("b"), 1)], setting(hardware=late))
    assert same.rows - parts([whole(one), whole(table("b"), 1)], setting()).rows == pytest.approx(2.5)
    floor = setting(hardware=dataclasses.replace(IDEAL, kernel_floor=5000.0))
    assert parts([whole(table(rows=10, ids=(1.0,)))], floor).lookup == 5.0
    assert parts([whole(one), row_wise(two)], floor).lookup == 10.0


def test_ids_cost_metadata_only_where_they_travel():
    slow = setting(hardware=dataclasses.replace(IDEAL, id_metadata=1000.0))
    assert parts([whole(table())], slow).ids - parts([whole(table())], setting()).ids == pytest.approx(1.0)
    cut = parts([columns(table(), 0, 1)], slow).ids - parts([columns(table(), 0, 1)], setting()).ids
    assert cut == pytest.approx(2.0)  # once to every part
    assert parts([everywhere(table())], slow).ids == 0
    assert parts([whole(table())], dataclasses.replace(slow, ranks=1)).ids == 0


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
    sent = sum(one.moved[:, 0].sum(axis=0) for one in loads)
    np.testing.assert_allclose(found["sent_bytes"], sent + ring)
    np.testing.assert_allclose(found["sent_bytes"].sum(), found["received_bytes"].sum())
    np.testing.assert_allclose(found["memory_ms"], 5 * sum(one.looked_up for one in loads) / 2e6)


def test_a_rank_is_busy_with_what_lies_on_it():
    of = table(rows=100, uses=np.array([3.0, 1.0, 0.0, 0.0]))
    hot, warm, *cold = load(row_wise(of), setting()).busy_ms(setting())
    asked, rows = 8000 / 1e6, 32_000 / 1e6  # of one rank's ids and vectors, in ms of the links
    lengths = 3 * 800 / 1e6
    kernels = 5 * 4 * 0.032 / 2
    assert hot == pytest.approx(0.75 * (kernels + 3 * asked + 2 * 3 * rows) + lengths)
    # Others mostly wait for rows of the first: what comes in counts where it is more than what goes out.
    assert warm == pytest.approx(0.25 * (kernels + 3 * asked) + lengths + 2 * 0.75 * rows)
    assert cold == pytest.approx(2 * [asked + lengths / 3 * 3 + 2 * rows])


NONE = Parts(ids=0.0, lookup=0.0, rows=0.0, gradients=0.0, apply=0.0, all_reduce=0.0)
# Dense gradients take the network, too: without them a step is the compute and what tables add.
ALONE = dataclasses.replace(PAPER_LIKE, dense_parameters=0)


def step(parts, way, load=ALONE, hardware=IDEAL):
    return step_ms(parts, hardware, load, ranks=64, way=way)["step_ms"]


def test_compute_is_calibrated_or_follows_from_the_operations():
    flops_ms = 1e3 * PAPER_LIKE.flops / (IDEAL.peak_flops * 1e12 * IDEAL.flops_efficiency)
    assert compute_ms(IDEAL, PAPER_LIKE) == pytest.approx(flops_ms)
    assert compute_ms(IDEAL, dataclasses.replace(PAPER_LIKE, compute_ms=50.0, fixed_ms=3.0)) == 53.0


@pytest.mark.parametrize(
    ("way", "compute", "collision", "ms"),
    [
        ("plain", 100.0, 0.5, 10 + 100 + 7),
        ("sparse dist", 10.0, 0.0, 100 + 7),  # ids are hidden
        ("sparse dist", 2.0, 0.0, 8 + 100 + 7),
        ("prioritized", 1000.0, 0.25, 7 + 25),
        ("prioritized", 50.0, 0.25, 7 + 25 + (10 + 75 - 50)),
    ],
)
def test_the_closed_form_of_what_a_step_waits_for(way, compute, collision, ms):
    parts = Parts(ids=10.0, lookup=5.0, rows=30.0, gradients=60.0, apply=5.0, all_reduce=7.0)
    assert rated(parts, compute=compute, collision=collision, way=way) == ms


def test_steps_take_the_parts_that_their_way_exposes():
    parts = Parts(ids=3.0, lookup=1.0, rows=20.0, gradients=30.0, apply=2.0, all_reduce=0.0)
    assert step(parts, "plain") - step(NONE, "plain") == pytest.approx(parts.total, rel=1e-6)
    ids = dataclasses.replace(NONE, ids=5.0)
    assert step(ids, "sparse dist") == pytest.approx(step(NONE, "sparse dist"), rel=0.01)
    # Of 10 ms of rows, a tenth is distinct rows that collide; of the gradients, every colliding event has one.
    load = dataclasses.replace(ALONE, collisions={64: 0.4}, distinct=0.5, colliding_distinct=0.25)
    quiet = dataclasses.replace(IDEAL, contention=0.0, memory_contention=0.0)
    for name, ms in (("rows", 1.0), ("gradients", 4.0)):
        one = dataclasses.replace(NONE, **{name: 10.0})
        found = step(one, "prioritized", load, quiet) - step(NONE, "prioritized", load, quiet)
        assert found == pytest.approx(ms)


@pytest.mark.parametrize("way", SHOWN)
def test_what_is_rated_longer_takes_longer(way):
    plans = [dataclasses.replace(NONE, rows=size, gradients=2 * size, ids=size / 9) for size in (10.0, 40.0, 160.0)]
    compute, collision = compute_ms(IDEAL, ALONE), ALONE.collision(64)
    ratings = [rated(one, compute=compute, collision=collision, way=way) for one in plans]
    steps = [step(one, way) for one in plans]
    assert ratings == sorted(ratings)
    assert steps == sorted(steps)
    assert steps[-1] > steps[0]
