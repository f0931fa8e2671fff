"""Sequences in parts, against the rules in plain Python."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from as_of_data import Data, source
from data_kit import lists as column_of
from data_kit import load, write
from hypothesis import example, given
from hypothesis import strategies as st

from fsdata import Polynomial, Schema, SchemaError, Segmented, Sequence, Split, expand, segment_mask
from fsdata.batch.jagged import SplitSequence

SPLITS = st.builds(Split, recent=st.integers(0, 6), segment=st.integers(1, 5), tokens=st.integers(1, 3))


def parts(events: int, split: Split) -> list[tuple[str, int, int]]:
    """(kind, segment, number of the event or token) at each position of a sample."""
    older = max(events - split.recent, 0)
    found: list[tuple[str, int, int]] = []
    for segment, first in enumerate(range(0, older, split.segment)):
        found += [("event", segment, n) for n in range(first, min(first + split.segment, older))]
        found += [("token", segment, n) for n in range(split.tokens)]
    return found + [("recent", -(-older // split.segment), n) for n in range(older, events)]


def sees(query: tuple[str, int, int], key: tuple[str, int, int]) -> bool:
    """Of two positions, `key` not after `query`."""
    if query[0] == "event":
        return key[0] == "event" and key[1] == query[1]
    if query[0] == "token":
        return key[0] == "token" or (key[0] == "event" and key[1] == query[1])
    return key[0] in ("token", "recent")


@given(lengths=st.lists(st.integers(0, 25), max_size=5), split=SPLITS)
@example(lengths=[0, 1, 3, 4, 25], split=Split(recent=3, segment=5, tokens=2))
@example(lengths=[], split=Split(recent=3, segment=5, tokens=2))
def test_positions_and_mask(lengths: list[int], split: Split) -> None:
    made = SplitSequence.from_lengths(torch.tensor(lengths, dtype=torch.int64), split)
    wanted = [parts(events, split) for events in lengths]
    assert made.lengths.tolist() == list(map(len, wanted))
    assert made.total == sum(map(len, wanted))
    assert made.offsets.tolist() == np.cumsum([0, *map(len, wanted)]).tolist()
    assert made.segments.tolist() == [len({s for kind, s, _ in each if kind == "event"}) for each in wanted]
    segments = [[s for kind, s, _ in each if kind == "event"] for each in wanted]
    assert made.segment_lengths.tolist() == [each.count(s) for each in segments for s in sorted(set(each))]
    begins = [
        at + [(kind, s) for kind, s, _ in each].index(("event", number))
        for at, each in zip(made.offsets.tolist(), wanted, strict=False)
        for number in sorted({s for kind, s, _ in each if kind == "event"})
    ]
    assert made.segment_offsets.tolist() == begins
    at = made.positions()
    first = np.cumsum([0, *lengths])
    flat = [(b, place, *part) for b, each in enumerate(wanted) for place, part in enumerate(each)]
    assert at.sample.tolist() == [b for b, *_ in flat]
    assert at.place.tolist() == [place for _, place, *_ in flat]
    assert at.segment.tolist() == [segment for _, _, _, segment, _ in flat]
    assert at.recent.tolist() == [kind == "recent" for _, _, kind, _, _ in flat]
    assert at.token.tolist() == [kind == "token" for _, _, kind, _, _ in flat]
    assert at.index.tolist() == [n if kind == "token" else first[b] + n for b, _, kind, _, n in flat]
    mask = segment_mask(SimpleNamespace(split={"uih": made}), "uih")
    longest = max(map(len, wanted), default=0)
    assert mask.shape == (len(lengths), longest, longest)
    expected = np.zeros(mask.shape, bool)
    for b, each in enumerate(wanted):
        for i, query in enumerate(each):
            expected[b, i, : i + 1] = [sees(query, key) for key in each[: i + 1]]
    assert np.array_equal(mask.numpy(), expected)
    values, tokens = torch.arange(sum(lengths)) + 100.0, torch.arange(split.tokens) + 0.5
    spread = [n + 0.5 if kind == "token" else 100.0 + first[b] + n for b, _, kind, _, n in flat]
    assert made.spread(values, tokens).tolist() == spread


@given(events=st.integers(0, 40), split=SPLITS)
def test_the_cost_counts_positions_and_pairs(events: int, split: Split) -> None:
    """A causal block of n counts n^2, as in Polynomial, and a full one of n x m counts 2 n m."""
    each = parts(events, split)
    by_kind = {kind: [part for part in each if part[0] == kind] for kind in ("event", "token", "recent")}
    tokens, recent = len(by_kind["token"]), len(by_kind["recent"])
    sizes = [sum(part[1] == s for part in by_kind["event"]) for s in {part[1] for part in by_kind["event"]}]
    pairs = sum(n * n + 2 * split.tokens * n for n in sizes) + tokens**2 + recent**2 + 2 * recent * tokens
    options = {"recent": split.recent, "segment": split.segment, "tokens": split.tokens}
    model = Segmented(**options, linear=7, quadratic=3, candidate=5, sample=2)
    found = model({"uih": np.array([events]), "candidates": np.array([2])})
    assert found.tolist() == [7 * len(each) + 3 * pairs + 10 + 2]
    assert eval(repr(model)) == model
    longer = model({"uih": np.array([events + 1]), "candidates": np.array([2])})
    assert longer > found


def test_recent_events_alone_cost_what_they_cost_without_parts() -> None:
    lengths = {"uih": np.arange(100)}
    assert np.array_equal(Segmented(recent=100, segment=10, tokens=2)(lengths), Polynomial()(lengths))


@pytest.mark.parametrize(
    "options",
    [{"recent": -1}, {"segment": 0}, {"tokens": 0}, {"recent": 1.5}, {"segment": True}],
    ids=str,
)
def test_parts_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    given = {"recent": 1, "segment": 2, "tokens": 1} | options
    with pytest.raises(SchemaError, match=rf"Split\({next(iter(options))}="):
        Split(**given)
    with pytest.raises(ValueError, match=rf"Segmented\({next(iter(options))}="):
        Segmented(**given)


def test_a_loader_gives_them(tmp_path: Path) -> None:
    lists = [list(range(n)) for n in (0, 9, 1, 4)]
    path = write(tmp_path / "a.parquet", {"item": column_of(pa.int64(), *lists)})
    split = Split(recent=2, segment=3, tokens=1)
    schema = Schema(sequences=(Sequence("uih", ("item",), split=split),))
    (batch,), _ = load(path, schema)
    assert batch.features.values().tolist() == [item for items in lists for item in items]
    for each in (batch, batch.to("cpu")):
        assert each.split["uih"].lengths.tolist() == [len(parts(len(items), split)) for items in lists]


def test_parts_of_shared_histories_are_those_of_samples(tmp_path: Path) -> None:
    Data.drawn(3, requests=50, users=3).write(tmp_path)
    split = Split(recent=1, segment=2, tokens=1)
    uih = Sequence("uih", ("item",), floats=("price",), share="user", split=split)
    pool = Sequence("pool", ("bought",), labels=("stars",), id_labels=("next",))
    schema = Schema(sequences=(uih, pool), context=("user",))
    (batch,), _ = load(source(tmp_path), schema, batch_size=50)
    made, where = batch.split["uih"], batch.shared["uih"]
    assert torch.equal(made.events, where.length)
    values = expand(batch.features["item"].values(), where)
    assert len(values) == made.total_events
    assert len(made.spread(values, torch.tensor([-1]))) == made.total
