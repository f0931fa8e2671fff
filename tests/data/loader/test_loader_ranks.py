"""The loader on several ranks: who shares it, and what they hear of each other."""

import logging

import polars as pl
import pytest
from rank_loaders import loader_on
from worlds import shared_world

from fsdata import MismatchError, ParquetSource, PeerError


def make_and_fail(rank, world_size, folder, mine, kinds):
    options = dict(mine[rank])
    if "path" in options:
        options["sources"] = ParquetSource(str(folder / options.pop("path")))
    with pytest.raises(kinds[rank]) as caught:
        loader_on(folder, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("one", "two", "item"),
    [
        ({"seed": 1, "shuffle": True}, {"seed": 2, "shuffle": True}, "seed=2"),
        ({"batch_size": 4}, {"batch_size": 5}, "batch_size"),
        ({"path": "own/part-0.parquet"}, {"path": "own/part-1.parquet"}, "source 0"),
    ],
)
def test_ranks_with_other_arguments_or_files_are_named_before_the_first_batch(folder, one, two, item):
    texts = shared_world(2).run(make_and_fail, folder, [one, two], [MismatchError] * 2)
    assert all("rank 0" in text and "rank 1" in text and item in text for text in texts), texts


def test_a_rank_that_misses_a_file_does_not_make_the_others_wait(folder):
    kinds = [PeerError, FileNotFoundError]
    texts = shared_world(2).run(make_and_fail, folder, [{"path": "own"}, {"path": "nowhere"}], kinds)
    assert "rank 1" in texts[0]
    assert "nowhere" in texts[0]


def too_long(rank, world_size, folder):
    with pytest.raises(Exception) as caught, loader_on(folder, max_tokens=9) as loader:
        list(loader)
    return type(caught.value).__name__, str(caught.value)


def test_a_sample_above_max_tokens_is_an_error_on_all_ranks(folder):
    found = dict(shared_world(2).run(too_long, folder))
    assert found.keys() <= {"ValueError", "PeerError"}
    assert "max_tokens=9 is below the next sample of rank" in found["ValueError"]
    assert "Raise max_tokens, or truncate with Sequence(max_length=...)" in found["ValueError"]
    assert "max_tokens=9 is below" in found.get("PeerError", "max_tokens=9 is below")


def ends_early(rank, world_size, folder, uneven):
    """What is logged of an epoch that ends when one rank has no row left, and what the loader counts."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("fsdata").addHandler(handler)
    try:
        source = ParquetSource(str(folder / "own"), filter=pl.col("row") < 3)
        with loader_on(folder, sources=source, uneven=uneven) as loader:
            seen = sum(len(batch) for batch in loader)
            return seen, loader.dropped, said
    finally:
        logging.getLogger("fsdata").removeHandler(handler)


@pytest.mark.parametrize("uneven", ["drop", "empty"])
def test_an_epoch_that_leaves_rows_unread_says_so(folder, uneven):
    answers = shared_world(2).run(ends_early, folder, uneven)
    for rank, (_, dropped, said) in enumerate(answers):
        unread = [each for each in said if "rows left out" in each]
        assert bool(unread) == (dropped > 0)
        assert all(f"rank {rank}: epoch 0 ends with up to {dropped} of this rank's" in each for each in unread)
    assert any(dropped for _, dropped, _ in answers) == (uneven == "drop")
    assert (sum(seen for seen, *_ in answers) == 3) == (uneven == "empty")
