"""Hardware files: what is bundled and refused, and how long the parts of a step take, against sums done by hand."""

import dataclasses
from importlib import resources

import numpy as np
import pytest

from freescale_tools.console.errors import UsageError
from freescale_tools.model.durations import PART, UNIQUE, all_reduce, exchange, shares_of_first, work
from freescale_tools.model.hardware import bundled, load_hardware, numbers, parameters
from freescale_tools.model.step import BALANCED, BY_NAME, DEDUP, PAGEABLE
from freescale_tools.model.workload import METHODS, Workload

H100 = load_hardware("h100-ib")
NO_LATENCY = dict.fromkeys(("exchange_latency", "peer_latency", "kernel_floor"), 0.0)
IDEAL = dataclasses.replace(H100, exchange_efficiency=1.0, allreduce_efficiency=1.0, **NO_LATENCY)


TEXT = (resources.files("freescale_tools.model") / "clusters" / "h100-ib.toml").read_text()


def test_every_bundled_number_has_a_unit_and_a_source():
    assert bundled() == ["b200-ib", "h100-ib", "h200-nvl", "mi350x-roce"]
    for name in bundled():
        lines = parameters(load_hardware(name))
        assert {one["name"] for one in lines} == {field.name for field in numbers(H100)}
        for one in lines:
            assert one["source"].startswith(("paper", "NVIDIA", "AMD", "measured", "assumed")), one


def test_files_are_read_by_their_path_and_one_that_is_like_another_has_the_differences_only(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.replace('name = "h100-ib"', 'name = "mine"').replace("value = 25.0", "value = 50.0"))
    assert (load_hardware(path).name, load_hardware(str(path)).network) == ("mine", 50.0)
    path.write_text(
        'name = "mine"\nlike = "h100-ib"\n[network]\nvalue = 12.5\nunit = "GB/s"\nsource = "measured: here"\n'
    )
    sources = {**H100.sources, "network": "measured: here"}
    assert load_hardware(path) == dataclasses.replace(H100, name="mine", network=12.5, sources=sources)
    for other in (f'"{path}"', '["h100-ib"]'):
        path.write_text(f'name = "mine"\nlike = {other}\n')
        with pytest.raises(UsageError, match=r"like = .*: there are b200-ib, h100-ib"):
            load_hardware(path)
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(UsageError, match=r"mine\.toml: 'utf-8' codec can't decode"):
        load_hardware(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[network]", "[netwrok]"), r"'netwrok' is not .* mean 'network'\?; \[network\] is missing \(GB/s\)"),
        (('unit = "TFLOP/s"', 'unit = "GFLOP/s"'), r"\[peak_flops\] is in 'GFLOP/s': convert it to 'TFLOP/s'"),
        (("value = 0.4", "value = 1.4"), "flops_efficiency = 1.4 share: above 0, at most 1 is needed"),
        (("value = 450.0", "value = 0.0"), "nvlink = 0 GB/s: above 0 is needed"),
        (("value = 450.0", "value = inf"), "nvlink = inf: a finite number"),
        (("value = 450.0", 'value = "fast"'), "nvlink = 'fast': a finite number"),
        (("value = 450.0\n", ""), r"\[nvlink\] has source, unit: value, unit and source"),
        (("value = 450.0", "value = 450.0\nnote = 1"), r"\[nvlink\] has note, source, unit, value"),
        (('source = "NVIDIA H100 SXM data sheet: HBM3"', 'source = " "'), r"\[memory\] has no source"),
        (('name = "h100-ib"', ""), "name is missing"),
        (("value = 8\n", "value = 2.5\n"), "gpus_per_host = 2.5: a whole number"),
        (("value = 8\n", "value = = 8\n"), "hardware .*mine.toml: "),
    ],
)
def test_wrong_files_are_refused_with_the_reason(tmp_path, change, message):
    assert change[0] in TEXT
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.replace(*change, 1))
    with pytest.raises(UsageError, match=message):
        load_hardware(path)


def test_unknown_names_and_impossible_hosts_are_refused():
    with pytest.raises(UsageError, match="'b300': give b200-ib, h100-ib, h200-nvl, mi350x-roce, or the path"):
        load_hardware("b300")
    with pytest.raises(ValueError, match="gpus_per_nvlink = 16 is above gpus_per_host = 8"):
        dataclasses.replace(H100, gpus_per_nvlink=16)


def test_exchanges_take_what_their_slowest_path_takes():
    gigabyte = 1e9
    assert exchange(IDEAL, gigabyte, 1) == 0
    assert exchange(IDEAL, gigabyte, 8) == pytest.approx(1e3 * 7 / 8 / 450)
    assert exchange(IDEAL, gigabyte, 64) == pytest.approx(1e3 * 56 / 64 / 25)
    assert exchange(IDEAL, gigabyte, 8, staged=True) == pytest.approx(1e3 * 7 / 8 / 64)
    assert exchange(IDEAL, gigabyte, 64, staged=True) == pytest.approx(1e3 * 56 / 64 / 25)
    bridged = dataclasses.replace(IDEAL, gpus_per_nvlink=4)
    assert exchange(bridged, gigabyte, 8) == pytest.approx(1e3 * 4 / 8 / 64)
    late = dataclasses.replace(IDEAL, exchange_latency=30.0, peer_latency=2.0, exchange_efficiency=0.5)
    assert exchange(late, gigabyte, 64) == pytest.approx(2e3 * 56 / 64 / 25 + 0.03 + 63 * 0.002)
    # Of 8 ranks, 4 are behind the spine, which has a third of the bandwidth; 6 are on other hosts.
    hosts = dataclasses.replace(IDEAL, gpus_per_host=2, gpus_per_nvlink=2, gpus_per_leaf=4, oversubscription=3.0)
    assert exchange(hosts, gigabyte, 4) == pytest.approx(1e3 * 2 / 4 / 25)
    assert exchange(hosts, gigabyte, 8) == pytest.approx(1e3 * 4 / 8 / (25 / 3))


def test_all_reduces_share_the_adapters_of_a_host():
    assert all_reduce(IDEAL, 1e9, 1) == 0
    assert all_reduce(IDEAL, 1e9, 8) == pytest.approx(2e3 * 7 / 8 / 450)
    assert all_reduce(IDEAL, 1e9, 64) == pytest.approx(2e3 * 63 / 64 / 200)
    assert all_reduce(dataclasses.replace(IDEAL, gpus_per_nvlink=4), 1e9, 64) == pytest.approx(2e3 * 63 / 64 / 64)


FLAT = dataclasses.replace(IDEAL, gpus_per_host=1, gpus_per_nvlink=1, gpus_per_leaf=1)
EVENTS, DIM, RANKS = 100_000, 64, 4
WIRE = 4 * DIM * EVENTS * (RANKS - 1) / RANKS / (FLAT.network * 1e6)
"""Milliseconds of the rows of all events."""
MEMORY = 4 * DIM * EVENTS / (FLAT.memory * 1e6)
"""Milliseconds of one pass over them."""


def made(name, hardware=FLAT, *, parts=1, **changes):
    given = {
        "batch_size": 8, "events": EVENTS, "flops": 1e12, "dim": DIM, "dense_parameters": 0,
        "time_lost": {(RANKS, "none"): 0.2, (RANKS, "balanced"): 0.0}, "collisions": {RANKS: 0.2},
    }  # fmt: skip
    way = dataclasses.replace(BY_NAME[name], parts=parts)
    return work(hardware, Workload(**{**given, **changes}), way, ranks=RANKS)


def test_compute_ids_and_data_take_what_their_products_and_bytes_say():
    plain, every, ids = made("plain"), made("all"), made("plain", ids=3.0)
    mean = 1e3 * 1e12 / (989e12 * 0.4)
    assert (plain.forward, plain.backward) == pytest.approx((mean / 0.8 / 3, 2 * mean / 0.8 / 3))
    assert every.forward + every.backward == pytest.approx(mean)
    assert plain.ids == pytest.approx(WIRE * 8 / (DIM * 4))
    assert (ids.ids, ids.id_metadata) == pytest.approx((3 * plain.ids, 3 * plain.id_metadata))
    assert plain.id_metadata == pytest.approx(FLAT.id_metadata * EVENTS / 1e6)
    assert (plain.redistribute, plain.data) == pytest.approx((0, EVENTS / 36e3))
    assert every.redistribute == pytest.approx(EVENTS * 24 * 3 / 4 / (FLAT.host_network * 1e6))


def test_what_is_sent_of_rows_that_are_used_twice_or_collide():
    rows = {"distinct": 0.5, "colliding_distinct": 0.25}
    whole = made("sparse dist", **rows).whole  # a row and a gradient with every event
    assert (whole.rows, whole.gradients) == pytest.approx((WIRE, WIRE))
    assert (whole.lookup, whole.apply) == pytest.approx((2 * MEMORY, 3 * MEMORY))
    step = made("prioritized", **rows)  # a row once, the gradient of every event
    assert (step.collision.rows, step.exclusive.rows) == pytest.approx((0.2 * 0.25 * WIRE, (0.5 - 0.05) * WIRE))
    assert (step.collision.gradients, step.exclusive.gradients) == pytest.approx((0.2 * WIRE, 0.8 * WIRE))
    step = made("prioritized", distinct=0.1)  # colliding rows are at most all rows
    assert step.collision.rows == pytest.approx(0.1 * WIRE)
    assert step.exclusive.rows == step.exclusive.lookup == 0


def test_what_index_dedup_sends_and_what_it_costs_the_rank_itself():
    rows = {"distinct": 0.5, "colliding_distinct": 0.25, "ids": 2.0}
    passes = UNIQUE * 2 * 8 * 2 * EVENTS / (FLAT.memory * 1e6)
    for name in ("plain + dedup", DEDUP, "all + dedup"):
        step, without = made(name, **rows), made(name.removesuffix(" + dedup"), **rows)
        assert step.ids == pytest.approx(0.5 * without.ids)
        assert step.id_metadata == pytest.approx(0.5 * without.id_metadata + passes)
        if "all" not in name:  # all occurrences are copied from their row, and their gradients added up
            whole = step.whole
            assert whole.rows == whole.gradients == pytest.approx(0.5 * WIRE)
            assert (whole.lookup, whole.apply) == pytest.approx(((1 + 2) * MEMORY, (1.5 + 2) * MEMORY))
    step = made("all + dedup", **rows)
    assert step.collision.gradients == step.collision.rows == pytest.approx(0.05 * WIRE)
    assert step.exclusive.gradients == step.exclusive.rows == pytest.approx(0.45 * WIRE)
    assert step.collision.lookup == pytest.approx((0.05 * 2 + 0.2 * 2) * MEMORY)
    assert step.exclusive.apply == pytest.approx((0.45 * 3 + 0.8 * 2) * MEMORY)
    half = made("sparse dist", value_bytes=2.0).whole  # on the link, not in memory
    assert (half.rows, half.lookup) == pytest.approx((0.5 * WIRE, 2 * MEMORY))


def test_copies_that_are_not_pinned_hold_up_the_training_thread():
    pinned, pageable = made(BALANCED, fields=5.0), made(PAGEABLE, fields=5.0)
    copied = 8 * 5 * EVENTS / (FLAT.pageable * 1e6)
    assert pageable == dataclasses.replace(pinned, own=pinned.own + copied)
    assert pinned.redistribute == pytest.approx(8 * 5 * EVENTS * 3 / 4 / (FLAT.host_network * 1e6))


def test_what_first_parts_need_and_what_travels_later():
    """Of 2 parts: a row that a rank uses twice is not in the first one in a quarter of all cases."""
    first = (1 - 0.8**0.5) / 0.2
    step, whole = (made("prioritized", colliding_distinct=0.5, parts=parts) for parts in (2, 1))
    assert (step.collision.rows, step.later.rows) == pytest.approx((0.75 * 0.1 * WIRE, 0.25 * 0.1 * WIRE))
    assert (step.collision.gradients, step.later.gradients) == pytest.approx((first * 0.1 * WIRE, 0.1 * WIRE))
    assert step.collision.apply + step.later.apply == pytest.approx(whole.collision.apply)
    assert step.collision.apply == pytest.approx(first * whole.collision.apply)
    assert step.exclusive == whole.exclusive
    # Of 4 parts, three have an even share of the other rows.
    assert made("prioritized", parts=4).later.rows == pytest.approx(0.2 * WIRE / 4)


def test_shares_of_first_parts_are_those_of_counted_ids():
    """Every rank draws its ids evenly from the same rows; a part of a batch is a part of its ids."""
    random, ids, rows = np.random.default_rng(0), 4000, 10_000
    batch, following = (random.integers(0, rows, (RANKS, ids)) for _ in range(2))
    collision = np.isin(batch, following).mean()
    for parts in (2, 8):
        begin = following[:, : ids // parts]
        needed, awaited = [], []
        for mine, first_ids, gradients in zip(following, begin, batch, strict=True):
            shared = mine[np.isin(mine, batch)]
            needed.append(np.isin(np.unique(shared), first_ids).mean())
            awaited.append(np.isin(gradients[np.isin(gradients, following)], begin).mean())
        repeats = np.mean([len(mine) / len(np.unique(mine)) for mine in following])
        found = shares_of_first(parts, repeats=repeats, collision=collision)
        assert found == pytest.approx((np.mean(needed), np.mean(awaited)), rel=0.05)
    assert shares_of_first(4, repeats=1.0, collision=0.0) == (0.25, 0.25)
    assert shares_of_first(1, repeats=3.0, collision=1.0) == (1.0, 1.0)


def test_a_part_takes_what_steps_take_beside_their_samples():
    assert (made("all").part, made("all", fixed_ms=7.0).part) == (PART, 7.0)


@pytest.mark.parametrize(("name", "method"), [("plain", "none"), ("balanced", "balanced")])
def test_an_exchange_lasts_as_long_as_that_of_the_busiest_rank(name, method):
    skews = dict(zip([(RANKS, one) for one in METHODS], (1.5, 1.25), strict=True))
    assert made(name, skews=skews).whole.rows == pytest.approx(skews[RANKS, method] * WIRE)


def test_launches_are_the_least_that_rows_take_and_no_rows_need_none():
    slow = dataclasses.replace(FLAT, kernel_floor=5000.0)
    assert made("prioritized", slow).collision.lookup == 5.0
    none = made("prioritized", slow, collisions={RANKS: 0.0}).collision
    assert (none.lookup, none.rows, none.apply) == (0, 0, 0)


def test_a_way_takes_what_its_remedies_take():
    own = dataclasses.replace(FLAT, own_cost=7.0)
    assert {name: made(name, own, balancing_ms=2.0).own for name in ("plain", "balanced", "prioritized", "all")} == {
        "plain": 0.0, "balanced": 2.0, "prioritized": 7.0, "all": 9.0,
    }  # fmt: skip
