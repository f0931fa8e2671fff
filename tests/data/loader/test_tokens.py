"""Batches that end before they would have more than `max_tokens` elements, without `balance`."""

import itertools

import pytest
from rank_loaders import ALL, loader_on, read_and_go_on, rows_of
from worlds import shared_world

from fsdata import Balance
from fsdata.nodes import Dealt, Steps

MOST = 15  # elements; the longest row has 12
OPTIONS = {"batch_size": 6, "max_tokens": MOST}


def tokens_of(batch):
    """int64 [B]."""
    lengths = batch.features["item"].lengths() + batch.features["candidate"].lengths()
    return lengths.tolist()


def check_each_is_full(batches):
    """The next row would not have fitted."""
    for batch, after in itertools.pairwise(batches):
        tokens, following = tokens_of(batch), tokens_of(after)
        assert sum(tokens) <= MOST
        assert len(tokens) == OPTIONS["batch_size"] or sum(tokens) + following[0] > MOST


@pytest.mark.parametrize("shuffle", [False, True])
def test_as_many_rows_as_fit(folder, shuffle):
    batches, _ = read_and_go_on(lambda: loader_on(folder, shuffle=shuffle, **OPTIONS), every=5)
    assert sorted(row for batch in batches for row in rows_of(batch)) == ALL
    assert len({len(batch) for batch in batches}) > 2
    check_each_is_full(batches)


def read(rank, world_size, folder, uneven):
    with loader_on(folder, shuffle=True, uneven=uneven, **OPTIONS) as loader:
        batches = list(loader)
        states = [loader.state_dict()]
        check_each_is_full([batch for batch in batches if len(batch)])
        return [rows_of(batch) for batch in batches], loader.dropped, states


@pytest.mark.parametrize("uneven", ["drop", "empty"])
def test_ranks_that_pass_different_numbers_of_rows(folder, uneven):
    (one, dropped, states), (two, also, others) = shared_world(2).run(read, folder, uneven)
    assert len(one) == len(two)
    assert states == others
    assert len({len(rows) for rows in one + two}) > 2
    seen = sorted(row for rows in one + two for row in rows)
    if uneven == "empty":
        assert seen == ALL
    else:
        assert all(one)
        assert all(two)
        assert len(seen) + dropped + also == len(ALL)
        assert dropped + also


def gone_on(rank, world_size, folder):
    options = {"shuffle": True, "uneven": "empty", **OPTIONS}
    batches, _ = read_and_go_on(lambda: loader_on(folder, **options), every=4)
    return len(batches)


def test_two_ranks_go_on_from_states(folder):
    one, two = shared_world(2).run(gone_on, folder)
    assert one == two > 4


def too_long(rank, world_size, folder):
    with pytest.raises(Exception) as caught, loader_on(folder, batch_size=4, max_tokens=9) as loader:
        list(loader)
    return type(caught.value).__name__, str(caught.value)


def test_a_sample_that_is_longer_is_an_error_on_all_ranks(folder):
    found = dict(shared_world(2).run(too_long, folder))
    assert found.keys() <= {"ValueError", "PeerError"}
    assert "max_tokens=9 is below the next sample of rank" in found["ValueError"]
    assert "Raise max_tokens, or truncate with Sequence(max_length=...)" in found["ValueError"]
    assert "max_tokens=9 is below" in found.get("PeerError", "max_tokens=9 is below")


def test_what_does_not_go_together(folder):
    with pytest.raises(ValueError, match=r"give Balance\(max_tokens=...\) in its place"):
        loader_on(folder, balance=Balance(), max_tokens=9)
    for wrong in (0, 2.5, True):
        with pytest.raises(ValueError, match="max_tokens must be an integer of at least 1"):
            loader_on(folder, max_tokens=wrong)
    with loader_on(folder) as loader:
        steps = Steps(loader._rows, 4, max_tokens=9)
        with pytest.raises(ValueError, match=r"Steps\(max_tokens=...\) is for Kept"):
            Dealt(steps)
