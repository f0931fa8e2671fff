"""Sampled histories that are stored once: those of plain Python, of which a row then draws its events."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import as_of_data
import pytest
from data_kit import load, loader_on, read, rows_of
from event_log import POOLS, SCHEMA, Log, anchors, as_of, histories_of, lookup, samples_of
from sampling_reference import digest_of, kept, key_of
from test_pools import every_row, write_requests
from worlds import shared_world

from fsdata import Balance, ParquetSource, Schema, Sequence, StochasticLength

UNIFORM = StochasticLength(alpha=1.2)
NEWEST = StochasticLength(alpha=1.2, select="newest")
SAMPLES = pytest.mark.parametrize("sample", [UNIFORM, NEWEST], ids=["uniform", "newest"])


def drawn(events: list[Any], place: tuple[str, int, int], sequence: Sequence, epoch: int = 0) -> list[Any]:
    """The events that a row draws of those it sees after truncation."""
    key = key_of(place, seed=0, epoch=epoch, sequence=sequence.name)
    return [events[position] for position in kept(key, len(events), sequence)]


def sampled_schema(schema: Schema, sample: StochasticLength) -> Schema:
    return replace(schema, sequences=tuple(replace(group, sample=sample) for group in schema.sequences))


@SAMPLES
@pytest.mark.parametrize("pools", [POOLS, {}], ids=["pools", "plain"])
@pytest.mark.parametrize("bucketed", [None, 3])
def test_histories_with_pools_and_looked_up_fields(tmp_path, sample, pools, bucketed):
    """Pools are merged and ids looked up for the events that a row keeps."""
    log = Log.drawn(3)
    log.write(tmp_path)
    rows = write_requests(log, tmp_path, seed=1)
    digest = digest_of(tmp_path / "rows.parquet")
    schema = sampled_schema(every_row(), sample)
    join = as_of(tmp_path, pools=pools, bucketed=bucketed)
    source = ParquetSource(tmp_path / "rows.parquet", join=[join, lookup(tmp_path)])
    batches, _ = load(source, schema, batch_size=7, shuffle=True)
    found = {
        row: history for batch in batches for row, history in zip(rows_of(batch), histories_of(batch), strict=True)
    }
    expected = {
        row: drawn(log.history(*place, pools=bool(pools)), (digest, *divmod(row, 9)), schema.sequences[0])
        for row, place in enumerate(rows)
    }
    assert found == expected
    short = math.floor(9 ** (sample.alpha / 2))
    assert {short, 9} <= set(map(len, found.values()))


@SAMPLES
@pytest.mark.parametrize("known", [False, True])
def test_events_that_were_not_known_yet_are_not_drawn(tmp_path, sample, known):
    """Windows with gaps, both ends of a history, labels and ids along it."""
    data = as_of_data.Data.drawn(4)
    data.write(tmp_path)
    groups = [replace(group, sample=sample) for group in as_of_data.SCHEMA.sequences]
    found = {
        each["row"]: {name: each[name] for name in as_of_data.FIELDS}
        for each in read(as_of_data.source(tmp_path, known=known), replace(as_of_data.SCHEMA, sequences=groups))
    }
    places = {}
    for file in range(2):
        numbers = sorted(row for row, _, _ in data.requests[file::2])
        digest = digest_of(tmp_path / "requests" / f"{file}.parquet")
        places |= {row: (digest, *divmod(position, 5)) for position, row in enumerate(numbers)}
    expected = {
        row: {name: drawn(lists[name], places[row], group) for group in groups for name in group.all_fields}
        for row, lists in data.expected(known=known).items()
    }
    assert found == expected
    assert any(len(lists["item"]) < 4 for lists in expected.values())


@SAMPLES
def test_rows_that_are_events(tmp_path, sample):
    """Anchors are numbered: the numbers of the rows they are identified by. Epochs draw anew."""
    log = Log.drawn(5)
    log.write(tmp_path)
    schema, digest = sampled_schema(SCHEMA, sample), digest_of(tmp_path / "histories.parquet")
    sequence = schema.sequences[0]
    with loader_on(anchors(tmp_path), schema, shuffle=True) as loader:
        for epoch in range(2):
            found = {}
            for batch in loader:
                found |= samples_of(batch)
            for row, place in enumerate(log.anchors(0)):
                wanted = log.sample(*place)
                wanted["history"] = drawn(wanted["history"], (digest, 0, row), sequence, epoch)
                assert found.pop(place) == wanted
            assert not found


def pooled(folder: Path) -> ParquetSource:
    return ParquetSource(folder / "rows.parquet", join=[as_of(folder), lookup(folder)])


def samples_of_rank(rank: int, ranks: int, folder: Path, schemas: tuple[Schema, Schema]) -> list[list[dict[str, Any]]]:
    sources, options = (pooled(folder), as_of_data.source(folder)), {"balance": Balance(), "drop_last": False}
    return [
        read(source, schema, batch_size=3, shuffle=True, **options)
        for source, schema in zip(sources, schemas, strict=True)
    ]


@pytest.mark.xdist_group("ranks")
@SAMPLES
def test_sampled_histories_move_to_other_ranks(tmp_path, sample):
    """By value, beside histories that are not sampled and move as references."""
    log = Log.drawn(6)
    log.write(tmp_path)
    write_requests(log, tmp_path, seed=2)
    as_of_data.Data.drawn(4).write(tmp_path)
    one_sampled = (replace(as_of_data.UIH, sample=sample), as_of_data.POOL)
    schemas = sampled_schema(every_row(), sample), replace(as_of_data.SCHEMA, sequences=one_sampled)
    parts = shared_world(2).run(samples_of_rank, tmp_path, schemas)
    for number, source in enumerate((pooled(tmp_path), as_of_data.source(tmp_path))):
        alone = read(source, schemas[number])
        found = [row for part in parts for row in part[number]]
        assert {row["row"]: row for row in found} == {row["row"]: row for row in alone}
        assert len(found) == len(alone)
