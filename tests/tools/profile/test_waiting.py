"""How sure it is what ranks lose: the truth by brute force lies in the interval, and what the interval follows from."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tools_kit import in_order

from freescale_tools.model.batches import Setting, deal_out
from freescale_tools.model.waiting import waiting
from fsdata.balance.cost import Polynomial, Power

DATA = Path(os.environ.get("FREESCALE_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
ROWS, BATCH = 4_000, 16
TRUTHS = 3  # of each set and number of ranks


def lognormal(median, p95, rows=ROWS, longest=8_000):
    drawn = np.random.default_rng(1).standard_normal(rows)
    return np.minimum(median * np.exp(np.log(p95 / median) / 1.6449 * drawn), longest).astype(np.int64)


def synthetic():
    usual, place = lognormal(60, 600), np.arange(ROWS)
    yield "lognormal", usual
    yield "short", lognormal(30, 200)
    yield "equal", np.full(ROWS, 100)
    yield "half empty", np.where(place * 7919 % 2, usual, 0)
    yield "all short but one", np.where(place == 3_333, 100_000, 50)
    yield "pareto", np.minimum(10 * (np.random.default_rng(2).pareto(1.05, ROWS) + 1), 100_000).astype(np.int64)
    yield "sorted", np.sort(usual)
    yield "longer by file", np.repeat([1, 4, 16, 64], ROWS // 4) * lognormal(5, 20, longest=100)
    yield "in waves", (usual * (1.2 + np.sin(place / 200))).astype(np.int64) + 1
    yield "two kinds", np.where(place % 500 < 50, 2_000, 20)


def real():
    """Real sets, as far as they are there, with histories cut to what a model might train on."""
    for name, most in (("online_retail", 8_000), ("oss_events", 4_096), ("oss_events", 100_000)):
        files = sorted((DATA / name).glob("interactions-*.parquet"))
        if files:
            lists = [pq.read_table(file, columns=["item_ids"])["item_ids"].combine_chunks() for file in files]
            lengths = np.concatenate([np.asarray(one.value_lengths()) for one in lists])
            yield f"{name}, cut to {most}", np.minimum(lengths, most)[: 4 * ROWS]


def truths(samples, setting, method, seeds):
    """Time lost over whole epochs that a loader may deal, of samples that cost what a model may: sums of all steps."""
    generator = np.random.default_rng(seeds)
    for number in range(TRUTHS):
        cost = Power(alpha=float(generator.uniform(1, 2)))
        other = dataclasses.replace(samples, seed=int(generator.integers(10, 10**6)))
        order = dataclasses.replace(setting, order=("file", "shuffled")[number % 2])
        found = deal_out(other, order, methods=(method,), costs=(cost,))
        loads = (found.loads[name, 0] for name in ("none", method))
        yield [1 - float(load.mean(axis=1).sum() / load.max(axis=1).sum()) for load in loads]


def of(lengths, rows_of_group=250):
    groups = len(lengths) // rows_of_group
    return in_order(lengths[: groups * rows_of_group], *[rows_of_group] * groups)


def test_the_truth_lies_in_the_interval(record_property):
    inside, widths = [], []
    for number, (_, lengths) in enumerate([*synthetic(), *real()]):
        samples = of(lengths)
        for ranks in (2, 16):
            setting = Setting(max_length=samples.histogram.longest, ranks=ranks, batch_size=BATCH)
            interval = waiting(samples, setting, "fbs+swap").interval()
            for truth in truths(samples, setting, "fbs+swap", (number, ranks)):
                for share, (low, high) in zip(truth, interval.values(), strict=True):
                    inside.append(low - 1e-3 <= share <= high + 1e-3)
            widths += [high - low for low, high in interval.values()]
    hold, width = np.mean(inside), np.median(widths)
    said = f"intervals of time lost: {hold:.0%} hold the truth, median width {100 * width:.0f} points"
    record_property("summary", said)
    assert len(inside) >= 10 * 2 * TRUTHS * 2
    assert hold >= 0.85
    assert width < 0.35, "an interval from nothing to all would hold every truth"


SETTING = Setting(max_length=8_000, ranks=8, batch_size=BATCH)


def test_a_measured_model_leaves_less_open_than_none():
    sets = dict(synthetic())
    uneven, equal = of(sets["lognormal"]), of(sets["equal"])
    (low, high), (least, most) = (
        waiting(uneven, SETTING, "fbs+swap", **options).interval()["none"] for options in ({"error": 0.0}, {})
    )
    assert high - low < 0.7 * (most - least)
    assert waiting(equal, SETTING, "fbs+swap", error=0.0).interval()["balanced"] == [0, 0]
    noisy = waiting(equal, SETTING, "fbs+swap", error=0.1).interval()["balanced"]
    assert noisy == [0, pytest.approx(0.13, abs=0.03)], "the largest of eight is 1.42 deviations above the mean"


def test_what_a_wrong_model_of_the_plan_leaves_is_in_it():
    """Plans that count tokens, where attention decides."""
    samples = of(np.random.default_rng(3).integers(50, 1000, ROWS))
    middle, tokens = (
        waiting(samples, dataclasses.replace(SETTING, cost=Power(alpha=alpha)), "fbs+swap").interval()["balanced"]
        for alpha in (1.5, 1.0)
    )
    assert tokens[1] > 1.3 * middle[1] > 0


def test_both_orders_are_in_it_and_shown():
    samples = of(dict(synthetic())["sorted"])
    found = waiting(samples, SETTING, "fbs+swap")
    shown = found.in_orders()
    assert list(shown) == ["file", "shuffled"]
    low, high = found.interval()["none"]
    for one in shown.values():
        assert one["steps"] == 31
        assert low < one["time_lost"]["none"] < high
    same = dataclasses.replace(SETTING, order="file", cost=Polynomial())
    exact = deal_out(samples, same, methods=("fbs+swap",))
    assert shown["file"]["time_lost"]["balanced"] == exact.waits("fbs+swap").time_lost()[0]
    assert shown["file"]["straggler"]["none"] == exact.waits("none").straggler()[0]
