"""Loaders that resume with other weights, sources, batch sizes, lengths and ranks: every row once, with its values.

The plans behind it are tested in `tests/data/order/test_epoch.py`.
"""

import json
import logging
import random
from collections import Counter
from dataclasses import replace
from itertools import islice

import data_kit as kit
import pytest
from data_kit import as_python, assert_same, rows_of
from rank_loaders import loader_on, sources_of
from sets import SCHEMA, write

from fsdata import ParquetSource, SchemaError, Sequence, StateError


@pytest.fixture(scope="module")
def folder(folder):
    write(folder / "third", 25, first=200, group=6)
    return folder


def named(folder, **weights):
    """The sources with these names, in the order own, partner, third."""
    own, partner = sources_of(folder)
    every = {"own": own, "partner": partner, "third": ParquetSource(folder / "third")}
    return [replace(every[name], weight=weights[name]) for name in every if name in weights]


ROWS = {"own": range(40), "partner": range(100, 123), "third": range(200, 225)}


@pytest.fixture(scope="module")
def samples(folder):
    """Row -> sample, read in one piece."""
    with loader_on(folder, named(folder, own=None, partner=None, third=None), batch_size=100) as loader:
        return {sample["row"]: sample for batch in loader for sample in as_python(batch)}


def steps_of(folder, weights, state, steps, *, ranks, skip=0, **options):
    """The samples of so many steps on all ranks behind a state (None: the begin), skipped ones too; the state then, and
    whether the epoch has ended."""
    seen, states = [], []
    for rank in range(ranks):
        with loader_on(folder, named(folder, **weights), rank=rank, world_size=ranks, **options) as loader:
            if state is not None:
                loader.load_state_dict(state, changed=("weights", "sources"))
            before = loader.state_dict()
            if loader.share == 1:  # the change has dropped all rows that were left
                skip = 0
            skipped = list(islice(loader, skip))
            loader.load_state_dict(before)
            assert loader.skip(skip) == len(skipped)
            batches = skipped + ([] if loader.share == 1 else list(islice(loader, steps)))
            assert {batch.stats.epoch for batch in batches} <= {0}
            seen += [sample for batch in batches for sample in as_python(batch)]
            state_now = json.loads(json.dumps(loader.state_dict()))
            states.append((state_now, loader.share == 1 or state_now["epoch"] == 1))
    assert all(each == states[0] for each in states)
    return seen, *states[0]


def check_chain(folder, samples, seed):
    draw = random.Random(seed)
    fixed = {
        "mix": draw.choice(["weighted", "weighted", "sequential", "time"]),
        "shuffle": draw.random() < 0.5,
        "shuffle_window": draw.choice([1, 2, 0.3]),
        "seed": seed,
    }
    weights: dict[str, float | None] = {"own": None, "partner": draw.choice([None, 2.0])}
    state, seen = None, []
    for _ in range(draw.randint(1, 4)):
        varied = {
            "ranks": draw.randint(1, 3),
            "batch_size": draw.randint(2, 5),
            "num_threads": draw.randint(1, 3),
            "prefetch": draw.randint(0, 2),
        }
        steps, skip = draw.randint(0, 3), draw.randint(0, 1)
        found, state, ended = steps_of(folder, weights, state, steps, skip=skip, **varied, **fixed)
        seen += found
        if ended:
            break
        weights = {name: draw.choice([weight, None, 0, 3]) for name, weight in weights.items()}
        if draw.random() < 0.5:
            weights.setdefault("third", draw.choice([None, 1.5]))
        if not any(weight != 0 for weight in weights.values()):
            weights["own"] = 1
    if not ended:
        seen += steps_of(folder, weights, state, 1_000, ranks=2, **fixed)[0]
    count = Counter(sample["row"] for sample in seen)
    assert max(count.values()) == 1
    assert all(set(ROWS[name]) <= set(count) for name, weight in weights.items() if weight != 0)
    assert all(sample == samples[sample["row"]] for sample in seen)


def test_every_row_is_read_once_whatever_changes(folder, samples):
    for seed in range(5):
        check_chain(folder, samples, seed)


@pytest.mark.long
def test_every_row_is_read_once_in_many_chains(folder, samples):
    for seed in range(100, 200):
        check_chain(folder, samples, seed)


def test_each_accepted_change_is_logged_once(folder, caplog):
    with loader_on(folder, named(folder, own=1.0, partner=2.0), mix="weighted") as loader:
        next(iter(loader))
        state = loader.state_dict()
    schema = replace(SCHEMA, sequences=(replace(SCHEMA.sequences[0], max_length=3),))
    every = ("weights", "sources", "batch_size", "max_length")
    with (
        caplog.at_level(logging.INFO, "fsdata"),
        loader_on(folder, named(folder, own=4.0, partner=2.0, third=1), schema, mix="weighted", batch_size=6) as other,
    ):
        other.load_state_dict(state, changed=every)
    said = [record.getMessage() for record in caplog.records if "resume with a change" in record.getMessage()]
    own, third = folder / "own", folder / "third"
    assert said == [
        f"resume with a change: weight of source 0 ({own}): saved 1.0, now 4.0",
        f"resume with a change: new: source 2 ({third})",
        "resume with a change: max_length of uih: saved 9, now 3",
        "resume with a change: batch_size: saved 4, now 6",
    ]


def lengths(length, share=None):
    (uih,) = SCHEMA.sequences
    return replace(SCHEMA, sequences=(replace(uih, max_length=length, share=share),))


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"mix": "time"}], ids=str)
def test_another_max_length_is_the_same_rows_truncated(folder, options):
    with loader_on(folder, **options) as loader:
        before = [sample for batch in islice(loader, 5) for sample in as_python(batch)]
        state = loader.state_dict()
    with (
        loader_on(folder, schema=lengths(2), **options) as short,
        loader_on(folder, schema=lengths(None), **options) as whole,
    ):
        for loader in (short, whole):
            with pytest.raises(StateError, match=r"load_state_dict\(state, changed='max_length'\) accepts"):
                loader.load_state_dict(state)
            loader.load_state_dict(state, changed="max_length")
        rows, after = rows_of(list(whole)), [sample for batch in short for sample in as_python(batch)]
        assert [sample["row"] for sample in after] == rows
        every = {sample["row"]: sample for batch in whole for sample in as_python(batch)}
    assert sorted(rows + [sample["row"] for sample in before]) == sorted(every)
    for field in ("item", "action", "price"):
        assert [sample[field] for sample in after] == [every[row][field][-2:] for row in rows]


def test_a_schema_that_differs_in_more_than_its_lengths_is_refused(folder):
    with loader_on(folder) as loader:
        state = loader.state_dict()
    others = (
        replace(lengths(2), labels=("bought", "click")),
        replace(SCHEMA, sequences=(replace(SCHEMA.sequences[0], max_length=2, keep="first"),)),
    )
    for schema in others:
        with (
            loader_on(folder, schema=schema, sources=named(folder, own=None, partner=None)) as loader,
            pytest.raises(StateError, match="schema: saved"),
        ):
            loader.load_state_dict(state, changed=("max_length", "weights", "sources"))


def test_a_source_of_weight_0_is_not_read_under_any_mix(folder):
    for mix in ("sequential", "weighted", "time"):
        with loader_on(folder, named(folder, own=0, partner=None, third=0.0), mix=mix) as loader:
            assert rows_of(loader) == [*ROWS["partner"]]
            assert len(loader) == 6
        with (
            loader_on(folder, named(folder, partner=None), mix=mix) as alone,
            loader_on(folder, named(folder, own=0, partner=None), mix=mix) as both,
        ):
            assert_same(alone, both)
    with pytest.raises(ValueError, match="every source has weight=0"):
        loader_on(folder, named(folder, own=0, partner=0))
    for weight in (-1, float("nan"), float("inf"), "2", True):
        with pytest.raises(SchemaError, match="weight must be a positive number, or 0"):
            ParquetSource("x", weight=weight)


def test_sources_change_between_epochs_and_no_epoch_is_lost_or_repeated(folder):
    with loader_on(folder, named(folder, own=None, partner=None), shuffle=True) as loader:
        for _ in loader:
            last = loader.state_dict()  # after the last batch, before the loop ends
        end = loader.state_dict()
    assert (last["epoch"], end["epoch"]) == (0, 1)
    for state in (last, end):
        with loader_on(folder, named(folder, own=None, third=None), shuffle=True) as other:
            other.load_state_dict(state, changed="sources")
            again = other.state_dict()
            batches = list(other)
            assert {batch.stats.epoch for batch in batches} == {1}
            assert sorted(rows_of(batches)) == [*ROWS["own"], *ROWS["third"]]
            other.load_state_dict(again)  # resumed twice
            assert_same(other, batches)


def test_a_source_leaves_the_list_when_the_epoch_in_which_it_was_dropped_has_ended(folder):
    with loader_on(folder, named(folder, own=None, partner=None)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with loader_on(folder, named(folder, own=0, partner=None)) as loader:
        loader.load_state_dict(state, changed="weights")
        assert loader.share == 4 / 27
        batches = iter(loader)
        assert rows_of([next(batches)]) == [100, 101, 102, 103]
        state = loader.state_dict()
        assert loader.share == 8 / 27
        batches = list(batches)
        assert rows_of(batches) == [*range(104, 123)]
        ended = loader.state_dict()
    with loader_on(folder, named(folder, partner=None)) as loader:
        with pytest.raises(StateError, match=r"Within an epoch give it with ParquetSource\(weight=0\)"):
            loader.load_state_dict(state, changed=("sources", "weights"))
        loader.load_state_dict(ended, changed="sources")
        assert (next(iter(loader)).stats.epoch, rows_of(loader)) == (1, [*ROWS["partner"]])


def test_small_row_groups_are_decoded_together_also_behind_a_change(tmp_path):
    """Row groups of two rows, which a change may cut."""
    for name, first in (("a", 0), ("b", 100)):
        numbers = list(range(first, first + 61))
        kit.write(tmp_path / name / "x.parquet", {"user": numbers, "item": [[n] * (n % 4) for n in numbers]}, group=2)
    schema = replace(kit.USERS, sequences=(Sequence("s", ("item",)),))
    a, b = ParquetSource(tmp_path / "a"), ParquetSource(tmp_path / "b")
    seen = []
    for rank in range(2):  # a step on two ranks cuts two row groups
        with kit.loader_on(a, schema, batch_size=9, rank=rank, world_size=2) as loader:
            seen += kit.column(as_python(next(iter(loader))), "user")
            state = loader.state_dict()
    with kit.loader_on([a, b], schema, batch_size=9) as loader:
        loader.load_state_dict(state, changed="sources")
        samples = [sample for batch in loader for sample in as_python(batch)]
    assert kit.column(samples, "user") == [*sorted({*range(61)} - {*seen}), *range(100, 161)]
    assert len(seen) == 18
    assert kit.column(samples, "item") == [[n] * (n % 4) for n in kit.column(samples, "user")]
