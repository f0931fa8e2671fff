"""What sharing histories saves: events against sets and against a loader that shares, bytes and steps by formula."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from stored_once_data import Samples, opened

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.collisions.held import hold_stored_once
from freescale_tools.model.durations import step
from freescale_tools.model.hardware import calibrated, load_hardware
from freescale_tools.model.workload import workload
from freescale_tools.profile.sharing import dealt, sharing
from freescale_tools.scan.histogram import LengthHistogram
from fsdata import AsOf, Balance, FreeScaleDataLoader, ParquetSource, Polynomial, Schema, Sequence, pack

pytestmark = pytest.mark.usefixtures("few_samples")
HARDWARE = load_hardware("h100-ib")
COST = Polynomial()


def held_by_sets(place, length, rank):
    """Events that each rank holds once, over all ranks."""
    seen = {
        (of, event) for begin, size, of in zip(place, length, rank, strict=True) for event in range(begin, begin + size)
    }
    return len(seen)


def profile_of(held, *, ranks, batch_size, method="fbs+swap", max_length=1000):
    """As much of a profile as the prediction needs."""
    histogram = LengthHistogram.from_lengths(held.lengths)
    default = {"ranks": ranks, "batch_size": batch_size, "max_length": max_length, "cost": repr(COST)}
    return {
        "sequences": {"item": {"histogram": histogram.to_dict()}},
        "stragglers": {"default": default, "points": []},
        "recommended": {"max_length": max_length, "method": method, "cost_model": repr(COST)},
        "collisions": None,
    }


def predicted(
    folder, *, ranks, batch_size, orders=("file", "shuffled", "time"), max_length=1000, fields=1, calibration=None,
    **options,
):  # fmt: skip
    with opened(folder) as requests:
        held = hold_stored_once(requests, None, max_length=max_length, ranks=ranks, batch_size=batch_size)
    document = profile_of(held, ranks=ranks, batch_size=batch_size, max_length=max_length, **options)
    settings = {"share": "user", "fields": fields, "dim": 16, "orders": orders, "calibration": calibration}
    return sharing(held, document, HARDWARE, **settings), document, held


def test_by_hand_in_order_of_time(tmp_path):
    """Five steps of four ranks with four samples each, their windows as sets of (user, event)."""
    samples = Samples.drawn(1, requests=80, users=3)
    samples.write(tmp_path, group=9)
    found, _, held = predicted(tmp_path, ranks=4, batch_size=4, orders=("time",), max_length=6)
    points = {(one["batch_size"], one["balanced"]): one for one in found["points"]}
    order = sorted(range(80), key=lambda n: samples.requests[n][1])
    windows = samples.windows
    events = shared = 0
    for first in range(0, 80, 4):
        batch = order[first : first + 4]
        kept = [(samples.requests[n][0], e) for n in batch for e in range(len(windows[n]))[-6:]]
        events, shared = events + len(kept), shared + len(set(kept))
    point = points[4, False]
    assert point["steps"] == 5
    assert (point["events"] * 20, point["shared_events"] * 20) == pytest.approx((events, shared))
    assert point["ratio"] == shared / events < 1
    cost = COST({"x": held.lengths[order]}).reshape(5, 4, 4).sum(axis=2)  # [step, rank]
    even = cost.mean(axis=1) / np.maximum(cost.max(axis=1), 1)
    even[cost.max(axis=1) == 0] = 1  # the first requests have no events before them: nothing to wait for
    assert point["straggler"] == pytest.approx((1 - even).mean())
    assert point["time_lost"] == pytest.approx(1 - cost.mean(axis=1).sum() / cost.max(axis=1).sum())
    assert points.keys() == set(itertools.product((1, 4), (False, True)))
    together = 0
    for first in range(0, 80, 16):
        place, length = (of[order[first : first + 16]] for of in (held.starts, held.lengths))
        rank, *_ = dealt(place, length, ranks=4, cost=COST, balance=Balance(cost=COST))
        together += held_by_sets(place, length, rank)
    assert points[4, True]["shared_events"] * 20 == pytest.approx(together)


def test_a_loader_that_shares_holds_as_many(tmp_path):
    ranks = 2
    samples = Samples.drawn(7, requests=48, users=5)
    samples.write(tmp_path, files=2, group=6)
    found, *_ = predicted(tmp_path, ranks=ranks, batch_size=6 // ranks, orders=("file",), max_length=5)
    (point,) = (one for one in found["points"] if one["batch_size"] == 6 // ranks and not one["balanced"])
    source = ParquetSource(
        str(tmp_path / "requests"),
        join=[AsOf(ParquetSource(str(tmp_path / "histories")), on="user", at="at", time="when", fields=("item",))],
    )
    held = {}
    for share in (None, "user"):
        schema = Schema(sequences=(Sequence("uih", ("item",), max_length=5, share=share),))
        held[share] = 0
        for rank in range(ranks):
            options = {"batch_size": 6 // ranks, "num_threads": 1, "rank": rank, "world_size": ranks}
            with FreeScaleDataLoader(source, schema, **options) as loader:
                held[share] += sum(batch.features["item"].values().numel() for batch in loader)
    assert point["steps"] == 8
    assert held == {None: round(8 * ranks * point["events"]), "user": round(8 * ranks * point["shared_events"])}


def test_balanced_samples_of_a_history_stay_together():
    random = np.random.default_rng(3)
    user = random.integers(0, 40, 256)
    length = random.integers(0, 50, 256)
    place = 1000 * user + 50 - length
    rank, before, after = dealt(place, length, ranks=4, cost=COST, balance=Balance(cost=COST))
    home, alone, same = dealt(place, length, ranks=4, cost=COST, balance=None)
    cost = COST({"x": length})
    assert after == pytest.approx(1 - np.bincount(rank, cost).mean() / np.bincount(rank, cost).max())
    assert before == pytest.approx(pack(cost, 4).straggler)
    assert alone == same == pytest.approx(1 - np.bincount(home, cost).mean() / np.bincount(home, cost).max())
    assert home.tolist() == np.repeat(range(4), 64).tolist()
    assert held_by_sets(place, length, rank) < 0.7 * held_by_sets(place, length, home)
    apart = pack(cost, 4).rank
    assert held_by_sets(place, length, rank) < held_by_sets(place, length, apart)
    assert max(before, after) < 0.05 < alone


MEASURED = Calibration(
    source="calibration: run.json, 120 rows", ranks=4, cost=COST, seconds_per_cost=1e-9, error=0.0, constant_s=0.02,
    forward=0.25, lookup_s=1e-6, update_s=2e-6, dim=96.0, latency_s=1e-4, bytes_per_s=1e8,
)  # fmt: skip


@pytest.mark.parametrize("measured", [None, MEASURED], ids=["assumed", "calibrated"])
def test_bytes_and_steps(tmp_path, measured):
    """Look-ups and updates that were measured are those of the events that a batch holds."""
    Samples.drawn(5, requests=400, users=6, longest=40).write(tmp_path)
    found, document, _ = predicted(tmp_path, ranks=4, batch_size=8, fields=3, calibration=measured)
    settings = {(one["order"], one["batch_size"], one["balanced"]) for one in found["points"]}
    assert settings == set(itertools.product(("file", "shuffled", "time"), (2, 8), (False, True)))
    assert (found["ranks"], found["fields"], found["dim"]) == (4, 3, 16)
    hardware = calibrated(HARDWARE, measured) if measured else HARDWARE
    for point in found["points"]:
        saved = (point["events"] - point["shared_events"]) * 3 / 4
        assert point["bytes_saved"] == pytest.approx({"ids": 24 * saved, "rows": 64 * saved, "gradients": 64 * saved})
        assert (point["ratio"] < 1, point["step_ms"] > 20) == (True, measured is not None)
        load = workload(document, batch_size=point["batch_size"], dim=16, calibration=measured)
        way, method = ("all", "balanced") if point["balanced"] else ("sparse dist", "none")
        for key, ratio, share in (("step_ms", 1, "time_lost"), ("step_ms_shared", point["ratio"], "time_lost_shared")):
            held = replace(load, events=load.events * ratio, time_lost={(4, method): point[share]})
            if measured:
                held = replace(held, lookup_ms=1e-3 * held.events, apply_ms=2e-3 * held.events)
            assert point[key] == pytest.approx(step(hardware, held, way, ranks=4)["step_ms"])


def test_requests_that_share_nothing_save_nothing_and_ranks_are_halved_until_requests_are_enough(tmp_path):
    samples = Samples(requests=[(n, 9) for n in range(40)], histories={n: ([1, 2], [n, n]) for n in range(40)})
    samples.write(tmp_path)
    found, *_ = predicted(tmp_path, ranks=64, batch_size=4)
    assert (found["ranks"], {one["batch_size"] for one in found["points"]}) == (2, {1, 4})
    assert {one["steps"] for one in found["points"] if one["batch_size"] == 4} == {5}
    for point in found["points"]:
        assert point["ratio"] == 1.0
        assert point["step_ms_shared"] == point["step_ms"]
        assert set(point["bytes_saved"].values()) == {0.0}
