"""`on_step`: the numbers of every batch, for the logs of a training job."""

import threading
from itertools import pairwise

import pyarrow.parquet as pq
import pytest
from data_kit import DECODERS, assert_same, loader_on, write
from played_clock import PlayedClock
from rank_loaders import ALL, rows_of, sources_of
from rank_loaders import loader_on as loader_of_sets
from sets import SCHEMA

from fsdata import ParquetSource, Schema, Sequence
from fsdata.batch.batch import StepStats
from fsdata.nodes.step_numbers import StepNumbers
from fsdata.nodes.timing import Timing

SUMS = {"wait_s": "wait", "decode_s": "decode"}


def tokens_in(batch):
    """Events of the one sequence, and candidates."""
    return sum(len(batch.features[name].values()) for name in ("item", "candidate"))


@pytest.mark.parametrize("adapt", [None, lambda batch: batch], ids=["batches", "adapted"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_every_batch_is_reported_once_before_the_loop_gets_it(folder, prefetch, adapt):
    said, order, threads = [], [], set()

    def on_step(numbers):
        said.append(numbers)
        order.append("said")
        threads.add(threading.get_ident())

    with loader_of_sets(folder, shuffle=True, prefetch=prefetch, adapt=adapt, on_step=on_step) as loader:
        batches = []
        for _ in range(2):
            for batch in loader:
                batches.append(batch)
                order.append("got")
        found = loader.stats()
    assert order == ["said", "got"] * len(batches)
    assert threads == {threading.get_ident()}
    assert [each["batches"] for each in said] == list(range(1, len(batches) + 1))
    for numbers, batch in zip(said, batches, strict=True):
        assert (numbers["epoch"], numbers["step"]) == (batch.stats.epoch, batch.stats.step)
        assert (numbers["samples"], numbers["tokens"]) == (len(batch), tokens_in(batch))
        assert "straggler_share" not in numbers
    for before, after in pairwise(said):
        assert ("step_s" in after) == ("samples_per_s" in after) == (after["step"] > 0)
        if after["step"]:
            assert after["samples_per_s"] == pytest.approx(before["samples"] / after["step_s"])
            assert after["tokens_per_s"] == pytest.approx(before["tokens"] / after["step_s"])
    # All that was counted until the last batch was reported: each of it once.
    for name, activity in SUMS.items():
        assert 0 < sum(each[name] for each in said) <= found["seconds"][activity] + 1e-6
    assert sum(each["bytes_read"] for each in said) == found["bytes_read"] > 0
    assert all(type(value) in (int, float) for each in said for value in each.values())


def test_a_loop_with_on_step_has_the_batches_of_one_without(folder):
    with loader_of_sets(folder, shuffle=True) as plain, loader_of_sets(folder, shuffle=True, on_step=id) as loader:
        assert_same(loader, plain)


def test_an_error_of_the_function_takes_the_place_of_the_batch(folder):
    error = KeyError("mine")

    def on_step(numbers):
        if numbers["step"] == 2:
            raise error

    with loader_of_sets(folder) as loader, loader_of_sets(folder, on_step=on_step) as failing:
        batches = iter(failing)
        seen = [rows_of(next(batches)) for _ in range(2)]
        with pytest.raises(KeyError) as caught:
            next(batches)
        assert caught.value is error
        assert failing.stats()["batches"] == 2
        loader.load_state_dict(failing.state_dict())
        rest = [rows_of(batch) for batch in loader]
    assert sorted(row for rows in (*seen, *rest) for row in rows) == ALL


def test_on_step_is_a_function(folder):
    with pytest.raises(TypeError, match="on_step is a function of a dict of numbers or None, got 3"):
        loader_of_sets(folder, on_step=3)


def test_rates_are_those_of_the_step_between_two_batches():
    clock, said, timing, read = PlayedClock(), [], Timing(), [0]
    numbers = StepNumbers(said.append, timing, lambda: read[0], clock.now)

    def report(samples, tokens):
        numbers.report(StepStats(epoch=0, step=0, world_size=1, samples=samples, global_samples=9), tokens, **rest)

    rest = {"batches": 1, "waiting": 0}
    numbers.begin_epoch()
    timing.add("wait", 3.0)
    read[0] = 700
    report(4, 100)
    clock.wait(0.5)
    timing.add("wait", 0.25)
    timing.add("decode", 2.0)
    read[0] = 1000
    report(6, 40)
    clock.wait(60.0)  # an evaluation between two epochs is in no rate
    numbers.begin_epoch()
    report(6, 40)
    assert [(each["wait_s"], each["decode_s"], each["bytes_read"]) for each in said] == [
        (3.0, 0.0, 700),
        (0.25, 2.0, 300),
        (0.0, 0.0, 0),
    ]
    rates = [[each.get(name) for name in ("step_s", "samples_per_s", "tokens_per_s")] for each in said]
    assert rates == [[None] * 3, [0.5, 8.0, 200.0], [None] * 3]


def test_what_a_report_that_raises_has_counted_is_in_the_next_one():
    said, timing = [], Timing()

    def on_step(numbers):
        said.append(numbers)
        if len(said) == 1:
            raise KeyError

    numbers = StepNumbers(on_step, timing, lambda: 5)
    stats = StepStats(epoch=0, step=0, world_size=1, samples=1, global_samples=1)
    timing.add("wait", 3.0)
    with pytest.raises(KeyError):
        numbers.report(stats, 1, batches=1, waiting=0)
    numbers.report(stats, 1, batches=1, waiting=0)
    assert [(each["wait_s"], each["bytes_read"]) for each in said] == [(3.0, 5)] * 2


def stored(path, columns, groups):
    """Bytes of the chunks of `columns` in some row groups, as pyarrow reads them from the footer."""
    metadata = pq.ParquetFile(path).metadata
    chunks = [metadata.row_group(group).column(leaf) for group in groups for leaf in range(metadata.num_columns)]
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("group", [10, 400], ids=["small row groups", "one row group"])
def test_bytes_read_are_the_chunks_of_the_columns_that_are_needed(tmp_path, decoder, group):
    rows = 400
    columns = {
        "row": list(range(rows)),
        "item": [[row * 7919] * (row % 90) for row in range(rows)],
        "unused": [[row] * 50 for row in range(rows)],
    }
    path = write(tmp_path / "a.parquet", columns, group=group)
    schema = Schema(context=("row",), sequences=(Sequence("uih", ("item",)),))
    source = ParquetSource(path, decoder=decoder)
    # With shuffling, every row group is decoded once, and as a whole.
    with loader_on(source, schema, shuffle=True) as loader:
        assert sum(map(len, loader)) == rows
        needed = stored(path, {"row", "item"}, range(-(-rows // group)))
        assert loader.stats()["bytes_read"] == needed
        assert sum(map(len, loader)) == rows
        assert loader.stats()["bytes_read"] == 2 * needed


def test_bytes_read_of_small_row_groups_that_are_decoded_together(tmp_path):
    path = write(tmp_path / "a.parquet", {"row": list(range(4000)), "unused": list(range(4000))}, group=100)
    with loader_on(path, Schema(context=("row",))) as loader:
        assert sum(map(len, loader)) == 4000
        read, least = loader.stats()["bytes_read"], stored(path, {"row"}, range(40))
    # The first row groups are decoded once more where the first window is cut for an early first batch.
    assert least <= read <= least + stored(path, {"row"}, range(8))


@pytest.mark.parametrize("explode", [None, "candidates"])
def test_tokens_are_counted_as_max_tokens_counts_them(folder, explode):
    """The most that any batch reports as tokens is a cap under which the same batches are made, and no smaller one."""
    schema = Schema(
        sequences=SCHEMA.sequences,
        candidates=SCHEMA.candidates,
        context=("row",),
        labels=("click",),
        explode=explode,
    )
    # A batch of one row each, so that a cap of tokens never has to cut one.
    options = {"schema": schema, "batch_size": 1, "sources": sources_of(folder)[:1]}
    said = []
    with loader_of_sets(folder, on_step=said.append, **options) as loader:
        free = list(loader)
    most = max(each["tokens"] for each in said)
    with loader_of_sets(folder, max_tokens=most, **options) as loader:
        assert_same(loader, free)
    with (
        loader_of_sets(folder, max_tokens=most - 1, **options) as loader,
        pytest.raises(ValueError, match="max_tokens"),
    ):
        list(loader)
