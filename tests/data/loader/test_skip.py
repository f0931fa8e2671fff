"""`skip(n)` is `islice(loader, n)` whose batches are dropped: the same state, the same batches afterwards."""

import logging
from dataclasses import replace
from itertools import islice

import polars as pl
import pytest
from data_kit import rows_of
from rank_loaders import ALL, loader_on, skips_as_islice, sources_of
from worlds import shared_world

from fsdata.nodes.dataset import Dataset

READ = "reads the batches, because their sizes are not known from the footers"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True, "mix": "weighted", "batch_size": 3},
        {"shuffle": True, "shuffle_window": 0.3, "drop_last": True},
        {"mix": "time", "rank": 1, "world_size": 3, "batch_size": 5},
        {"shuffle": True, "rank": 2, "world_size": 4, "drop_last": True},
    ],
    ids=str,
)
def test_skipped_batches_are_those_that_islice_takes(folder, options):
    def make():
        return loader_on(folder, **options)

    with make() as loader:
        steps = len(loader)
    for before, number in ((0, 1), (1, 0), (2, steps - 3), (3, 100), (0, steps)):
        skips_as_islice(make, before, number)


def dropping(folder):
    return [replace(source, filter=pl.col("row") % 3 > 0) for source in sources_of(folder)]


@pytest.mark.parametrize("options", [{"max_tokens": 40}, {"drop": True, "shuffle": True}], ids=str)
def test_where_rows_drop_out_or_wait_the_skipped_batches_are_read(folder, options, caplog):
    options = {"sources": dropping(folder) if options.get("drop") else None, **options}
    options.pop("drop", None)

    def make():
        return loader_on(folder, **options)

    with caplog.at_level(logging.INFO, "fsdata"):
        skips_as_islice(make, 1, 4)
        skips_as_islice(make, 0, 100)
    assert caplog.text.count(READ) == 2


def test_nothing_is_decoded_where_the_footers_give_all_sizes(folder, monkeypatch, caplog):
    read, original = [], Dataset.read

    def counted(self, piece, *args, **options):
        read.append(piece)
        return original(self, piece, *args, **options)

    monkeypatch.setattr(Dataset, "read", counted)
    with loader_on(folder, shuffle=True) as loader, caplog.at_level(logging.INFO, "fsdata"):
        assert loader.skip(7) == 7
        assert loader.skip(5) == 5
        assert loader.state_dict()["step"] == 12
        assert not read
        assert READ not in caplog.text
        assert next(iter(loader)).stats.step == 12
        assert read


def test_the_rest_on_other_ranks_is_skipped_over(folder):
    with loader_on(folder, shuffle=True, rank=0, world_size=2) as loader:
        list(islice(loader, 3))
        state = loader.state_dict()
    for rank in range(3):

        def make(rank=rank):
            loader = loader_on(folder, shuffle=True, rank=rank, world_size=3)
            loader.load_state_dict(state)
            return loader

        for steps in (1, 2, 100):
            skips_as_islice(make, 0, steps)


def test_a_skip_ends_at_the_end_of_its_epoch(folder):
    with loader_on(folder) as loader:
        steps = len(loader)
        assert loader.skip(steps + 5) == steps
        assert loader.skip(2) == 2  # from the end of an epoch on: of the next
        assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (1, 2)
        loader.set_epoch(4)
        assert loader.skip(steps - 1) == steps - 1
        assert rows_of(loader) == ALL[4 * (steps - 1) :]
        assert loader.state_dict()["epoch"] == 5
        assert loader.skip(0) == 0
        assert rows_of(loader) == ALL


def test_a_skip_ends_the_loop_and_counts_from_its_last_batch(folder):
    with loader_on(folder, prefetch=3) as loader:
        batches = iter(loader)
        next(batches)
        assert loader.skip(2) == 2
        with pytest.raises(RuntimeError, match=r"load_state_dict\(\) or skip\(\) moved"):
            next(batches)
        assert rows_of(loader) == ALL[12:]
        with pytest.raises(ValueError, match="steps must be"):
            loader.skip(-1)
    with pytest.raises(RuntimeError, match="was closed"):
        loader.skip(1)


def on_ranks(rank, world_size, folder, drop):
    sources = dropping(folder) if drop else None
    skips_as_islice(lambda: loader_on(folder, sources, shuffle=True), 1, 2)
    with loader_on(folder, sources) as loader:
        return loader.skip(100)


@pytest.mark.parametrize("drop", [False, True])
def test_ranks_skip_the_same_steps(folder, drop):
    found = shared_world(2).run(on_ranks, folder, drop)
    assert found[0] == found[1] > 4
