"""The loader on one process: every row once, the right values, one order, exact resume."""

import json
import pickle
import re
from dataclasses import replace

import polars as pl
import pytest
from data_kit import assert_same, rows_of, same
from patience import until
from rank_loaders import ALL, read_and_go_on, sources_of
from sets import SCHEMA, write
from torchrec.streamable import Pipelineable

from fsdata import (
    FreeScaleDataLoader,
    ParquetSource,
    Schema,
    StateError,
)


@pytest.fixture
def sources(folder):
    return sources_of(folder)


def test_sources_keep_their_order(loader_of, sources):
    assert rows_of(loader_of()) == rows_of(loader_of(mix="time")) == ALL
    weighted = rows_of(loader_of([sources[0], replace(sources[1], weight=2.0)], mix="weighted"))
    assert [row for row in weighted if row < 100] == list(range(40))
    assert sum(row >= 100 for row in weighted[:12]) in (5, 6, 7, 8, 9)


def test_epochs_differ_and_set_epoch_repeats_one(loader_of):
    loader = loader_of(shuffle=True)
    first, second = rows_of(loader), rows_of(loader)
    assert first != second
    assert sorted(first) == sorted(second)
    loader.set_epoch(0)
    assert rows_of(loader) == first
    assert rows_of(loader) == second


def test_an_epoch_set_inside_a_loop_is_the_place_after_it(loader_of):
    loader = loader_of(shuffle=True)
    for _ in loader:
        loader.set_epoch(5)
    assert loader.state_dict()["epoch"] == 5
    assert next(iter(loader)).stats.epoch == 5


@pytest.mark.parametrize(
    ("options", "source", "why"),
    [
        ({"batch_size": 41, "drop_last": True}, {}, "drop_last leaves out all 40 rows, as 1 ranks x batch_size 41 are"),
        ({}, {"skip": 40}, "the sources have no rows"),
        ({}, {"filter": pl.col("row") * 0 > 1}, "of 40 rows in the files, all of this rank dropped out"),
    ],
)
def test_an_epoch_without_a_batch_says_why_once(loader_of, sources, caplog, options, source, why):
    loader = loader_of(replace(sources[0], **source), **options)
    for _ in range(2):
        assert list(loader) == []
    (warning,) = [each for each in caplog.records if "got no batch" in each.message]
    assert re.search(why, warning.message)


def test_ranks_that_compare_nothing_say_so_with_a_fingerprint(loader_of, sources, caplog):
    said = []
    for rank, seed, limit in ((0, 1, 9), (1, 1, 9), (1, 2, 9), (1, 1, 8)):
        loader_of(replace(sources[0], limit=limit), rank=rank, world_size=2, seed=seed, shuffle=True)
        said.append(re.search(r"same here: (\w{16})\.", caplog.messages[-1])[1])
    assert caplog.messages[0].startswith("rank 0 of 2 has no process group")
    assert said[0] == said[1]
    assert len(set(said)) == 3
    loader_of(sources[0])
    assert len(caplog.messages) == 4


def test_what_is_printed_of_loader_and_batch(loader_of):
    loader = loader_of()
    assert repr(loader).endswith("; rank 0 of 1, batch_size=4)")
    assert repr(loader).startswith("FreeScaleDataLoader(63 rows of source 0 (")
    batch = repr(next(iter(loader)))
    assert batch.startswith("Batch(epoch 0, step 0; 4 of 4 samples; features: ")
    assert "; labels: " in batch
    assert "0x" not in batch


@pytest.mark.parametrize(
    ("wrong", "todo"),
    [
        (
            lambda source, make: FreeScaleDataLoader("/data/x", SCHEMA, batch_size=4),
            r"write ParquetSource\('/data/x'\)",
        ),
        (lambda source, make: make(source, num_workers=4), "num_threads="),
        (lambda source, make: pickle.dumps(make(source)), "make one in every process"),
        (lambda source, make: make(source)[0], "iterate over the FreeScaleDataLoader itself"),
    ],
)
def test_habits_of_other_loaders_are_answered(loader_of, sources, wrong, todo):
    with pytest.raises(TypeError, match=todo):
        wrong(sources[0], loader_of)


def test_a_state_of_the_end_of_an_epoch_begins_the_next(loader_of):
    loader = loader_of(shuffle=True, prefetch=2)
    for _ in loader:
        state = json.loads(json.dumps(loader.state_dict()))  # at last that after the last batch, before the loop ends
    again = loader_of(shuffle=True)
    again.load_state_dict(state)
    assert_same(again, loader)


def test_the_state_of_a_loop_left_early_is_that_of_the_batch_last_yielded(loader_of):
    loader = loader_of(prefetch=3)
    whole = list(loader_of())
    for batch in loader:
        if batch.stats.step == 4:
            break
    until(lambda: loader.stats()["waiting"] >= 3)  # the batches made ahead, which the state must not count
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert_same(loader, whole[5:])


def test_state_of_other_data_is_refused(loader_of, folder):
    state = loader_of(seed=1).state_dict()
    with pytest.raises(StateError, match="seed=1"):
        loader_of(seed=2).load_state_dict(state)
    with pytest.raises(StateError, match="source 0"):
        loader_of(sources=[ParquetSource(str(folder / "own" / "part-0.parquet"))]).load_state_dict(state)
    with pytest.raises(StateError, match="version"):
        loader_of().load_state_dict({**state, "version": 99})
    with pytest.raises(StateError, match="not a loader state"):
        loader_of().load_state_dict({"step": 3})
    for damage in ({"positions": "x"}, {"positions": []}, {"positions": [-1]}, {"epoch": -1}):
        with pytest.raises(StateError, match="damaged"):
            loader_of(seed=1).load_state_dict({**state, **damage})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"batch_size": True}, "batch_size must be an integer of at least 1, got True"),
        ({"batch_size": 2**63}, r"at least 1 and at most 2\*\*63 - 1, got"),
        ({"prefetch": True}, "prefetch must be an integer"),
        ({"shuffle": "yes"}, "shuffle must be True or False, got 'yes'"),
        ({"drop_last": "no"}, "drop_last must be True or False, got 'no'"),
        ({"pin_memory": "no"}, "pin_memory must be True or False, got 'no'"),
        ({"seed": False}, "seed must be an integer"),
        ({"timeout_s": "1"}, "timeout_s must be a positive number"),
        ({"drop_last": 1}, "drop_last must be True or False"),
        ({"mix": "random"}, "mix must be one of 'sequential', 'weighted', 'time'"),
        ({"uneven": "pad"}, "uneven must be one of"),
        ({"prefetch": -1}, "prefetch"),
        ({"num_threads": 0}, "num_threads"),
        ({"shuffle_window": 0}, "shuffle_window"),
        ({"rank": 1}, "world_size"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"sources": []}, "sources is empty"),
        ({"sources": ["data/*.parquet"]}, "ParquetSource"),
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"schema": {"sequences": []}}, "Schema"),
        ({"schema": replace(SCHEMA, time=None), "mix": "time"}, "which is not set"),
    ],
)
def test_nonsense_arguments_are_named(loader_of, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        loader_of(**options)


def test_no_thread_is_left(loader_of, begun):
    loader = loader_of(prefetch=2, num_threads=2)
    first = iter(loader)
    next(iter(loader))
    assert begun("fsdata")
    loader.close()
    loader.close()
    assert begun("fsdata") == []
    for iterate in (lambda: iter(loader), lambda: next(first)):
        with pytest.raises(RuntimeError, match="closed"):
            iterate()


def test_more_ranks_than_rows(loader_of, tmp_path):
    write(tmp_path / "few", 2)
    source = ParquetSource(str(tmp_path / "few"))
    sizes = [[len(batch) for batch in loader_of(sources=source, rank=rank, world_size=3)] for rank in range(3)]
    assert sizes == [[1], [1], [0]]


def test_rows_that_drop_out_on_one_rank(loader_of, folder):
    source = ParquetSource(str(folder / "own"), filter=pl.col("row") % 4 < 2)
    batches, states = read_and_go_on(lambda: loader_of(sources=source), every=3)
    assert rows_of(batches) == [row for row in range(40) if row % 4 < 2]
    assert states[-1]["positions"] == [40]  # rows 38 and 39 are passed with the last one that lives
    with pytest.raises(ValueError, match="init_process_group"):
        loader_of(sources=source, rank=0, world_size=2)


def test_the_batch_carries_what_pipelines_need(loader_of):
    batch = next(iter(loader_of()))
    assert isinstance(batch, Pipelineable)
    assert same(batch.to("cpu"), batch)
    assert batch.loss_weight == 1.0
    assert batch.features is batch.features


def test_more_rows_than_the_first_ones_that_are_decoded(loader_of, tmp_path):
    """An epoch begins with few rows, so that its first batch comes soon; it may begin anywhere in a row group."""
    pl.DataFrame({"row": range(1800)}).write_parquet(tmp_path / "a.parquet", row_group_size=1500)
    options = {"sources": ParquetSource(tmp_path), "schema": Schema(context=("row",)), "batch_size": 171}
    batches, _ = read_and_go_on(lambda: loader_of(**options, num_threads=2), every=1)
    assert rows_of(batches) == list(range(1800))
