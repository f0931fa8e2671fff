"""Several kinds of events of one history, capped one by one and put back into its order: against plain Python."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from data_kit import column, load, loader_on, rows_of, write
from data_kit import read as read_samples
from event_log import OVERLAPPING, POOLS, UIH, Log, as_of, histories_of, lookup
from hypothesis import given
from hypothesis import strategies as st
from worlds import shared_world

from fsdata import AsOf, Balance, DataError, Lookup, ParquetSource, Schema, SchemaError, Sequence
from fsdata.decode.block import Column, run
from fsdata.histories.kernels import histories
from fsdata.kernels import runs
from fsdata.kernels.columns import INT8


def every_row(most: int = 9) -> Schema:
    uih = Sequence("uih", fields=UIH.fields, floats=UIH.floats, max_length=most)
    return Schema(sequences=(uih,), context=("row", "uid"))


def write_requests(log: Log, folder: Path, *, seed: int) -> list[tuple[int, int]]:
    """(uid, position) of some rows, all users among them and one that has no history."""
    random = np.random.default_rng(seed)
    rows = [
        (uid, int(random.integers(0, len(log.events[uid]["item"]) + 1)) if uid in log.events else 3)
        for uid in [*log.events, 1000, *random.choice(list(log.events), 30).tolist()]
    ]
    columns = {"row": range(len(rows)), "uid": [uid for uid, _ in rows], "position": [place for _, place in rows]}
    times = [[*log.events.get(uid, {"ts": []})["ts"], 10**6] for uid in columns["uid"]]
    columns["at"] = [of[min(place, len(of) - 1)] for of, place in zip(times, columns["position"], strict=True)]
    write(folder / "rows.parquet", {name: list(of) for name, of in columns.items()}, group=9)
    return rows


def read(folder: Path, join: AsOf, schema: Schema | None = None) -> dict[int, list[dict[str, Any]]]:
    source = ParquetSource(folder / "rows.parquet", join=[join, lookup(folder)])
    return by_row(load(source, schema or every_row(), batch_size=7)[0])


def by_row(batches: list[Any]) -> dict[int, list[dict[str, Any]]]:
    return {row: of for batch in batches for row, of in zip(rows_of(batch), histories_of(batch), strict=True)}


@given(
    seed=st.integers(0, 2**32),
    scan=st.sampled_from([None, 1, 5, 20]),
    cap=st.sampled_from([None, 1, 3, 20, 4086]),
    most=st.sampled_from([9, 90]),
    pools=st.sampled_from([POOLS, OVERLAPPING, {}]),
    sparse=st.booleans(),
    longest=st.sampled_from([40, 400]),
    bucketed=st.sampled_from([None, 3]),
)
def test_rows_see_the_last_events_of_every_pool(
    tmp_path_factory: pytest.TempPathFactory, seed: int, scan: int | None, cap: int | None, most: int,
    pools: dict[str, pl.Expr], sparse: bool, longest: int, bucketed: int | None,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("pools")
    log = Log.drawn(seed, longest=longest, sparse=sparse)
    log.write(folder)
    rows = write_requests(log, folder, seed=seed)
    cap = cap if pools else None
    found = read(folder, as_of(folder, scan=scan, cap=cap, pools=pools, bucketed=bucketed), every_row(most))
    of = {"scan": scan, "cap": cap, "most": most, "pools": bool(pools), "overlapping": pools is OVERLAPPING}
    for row, place in enumerate(rows):
        assert found[row] == log.history(*place, **of), place


def test_a_pool_that_is_rare_reaches_far_back(tmp_path: Path) -> None:
    """Where few of the events are seen, they are found in the places of their pools and not one by one."""
    size = 3000
    of = {"item": [*range(size)], "ts": [*range(size)], "type": [2] * size, "ratio": [0] * size, "organic": [0] * size}
    for place in (1, 2, 700, 2990, 2994):
        of["type"][place] = 1
    for place in (3, 1500, 2991, 2993, 2995, 2998):
        of["type"][place] = 0
    log = Log(events={0: of}, items={1: (1, 0.5)})
    log.write(tmp_path)
    for cap in (1, 3, 4, None):
        for most in (1, 4, 9, None):
            write(tmp_path / "rows.parquet", {"row": [0], "uid": [0], "position": [size]})
            uih = Sequence("uih", fields=UIH.fields, floats=UIH.floats, max_length=most)
            found = read(tmp_path, as_of(tmp_path, cap=cap), Schema(sequences=(uih,), context=("row",)))
            assert found[0] == log.history(0, size, cap=cap, most=most)


@pytest.mark.parametrize(
    ("longest", "caps", "most"), [(40, {"like": 2, "skip": 1}, 9), (400, {"like": 2, "skip": 50}, 120)]
)
def test_pools_as_of_a_time_and_caps_by_name(tmp_path: Path, longest: int, caps: dict[str, int], most: int) -> None:
    """Of a pool that is full, no more events are seen, though those around them still are."""
    log = Log.drawn(4, longest=longest)
    log.write(tmp_path)
    rows = write_requests(log, tmp_path, seed=4)
    at = pq.read_table(tmp_path / "rows.parquet")["at"].to_pylist()
    found = read(tmp_path, as_of(tmp_path, at="at", cap=caps), every_row(most))
    for row, (uid, _) in enumerate(rows):
        position = sum(ts < at[row] for ts in log.events.get(uid, {"ts": []})["ts"])
        masks = {place: log.in_pools(uid, place, overlapping=False) for place in range(position)}
        seen = set()
        for pool, cap in enumerate((0, *caps.values())):
            seen |= set([place for place in range(position) if masks[place][pool]][-cap:])
        expected = [log.events[uid]["item"][place] for place in sorted(seen)][-most:]
        assert [event["item"] for event in found[row]] == expected


@pytest.mark.parametrize("pools", [POOLS, {}])
def test_the_event_of_the_row_counts_where_it_is_included(tmp_path: Path, pools: dict[str, pl.Expr]) -> None:
    """A row behind all events has none of its own."""
    log = Log.drawn(8)
    log.write(tmp_path)
    size = len(log.events[0]["item"])
    write(tmp_path / "rows.parquet", {"row": [0, 1], "uid": [0, 0], "position": [size - 1, size]})
    found = read(tmp_path, as_of(tmp_path, pools=pools, inclusive=True))
    assert found[0] == found[1] == log.history(0, size, pools=bool(pools))


def test_a_position_behind_the_history_is_an_error(tmp_path: Path) -> None:
    log = Log.drawn(8)
    log.write(tmp_path)
    write(tmp_path / "rows.parquet", {"row": [0], "uid": [0], "position": [10**6]})
    with pytest.raises(DataError, match=r"row 0: position is 1000000, .* has \d+ events of uid 0"):
        read(tmp_path, as_of(tmp_path))


@pytest.mark.parametrize(
    ("given", "message"), [({"share": "uid"}, "have gaps"), ({"keep": "first"}, "the last events")]
)
def test_sequences_that_pools_cannot_make(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    log = Log.drawn(8)
    log.write(tmp_path)
    write_requests(log, tmp_path, seed=8)
    uih = Sequence("uih", fields=UIH.fields, floats=UIH.floats, max_length=9, **given)
    with pytest.raises(SchemaError, match=message):
        read(tmp_path, as_of(tmp_path), Schema(sequences=(uih,), context=("row",)))


@pytest.mark.parametrize("sparse", [False, True])
def test_two_tables_of_one_id(tmp_path: Path, sparse: bool) -> None:
    """Their fields stand in turn in the sequence; values of one take 8 bytes, and ids of the log are below its own."""
    log = Log.drawn(5, sparse=sparse)
    log.write(tmp_path)
    rows = write_requests(log, tmp_path, seed=5)
    albums = {item: 2**40 + 3 * number for number, item in enumerate(sorted(log.items)[4:])}
    columns = {"item": list(albums), "album": list(albums.values()), "year": [n % 7 for n in range(len(albums))]}
    write(tmp_path / "albums.parquet", columns)
    default = {"album": -(2**50), "year": -1}
    other = Lookup(ParquetSource(tmp_path / "albums.parquet"), on="item", fields=("album", "year"), default=default)
    uih = Sequence("uih", fields=("album", "artist", "year", "item", "ts", "pools"), floats=UIH.floats, max_length=9)
    source = ParquetSource(tmp_path / "rows.parquet", join=[as_of(tmp_path, cap=3), lookup(tmp_path), other])
    samples = read_samples(source, Schema(sequences=(uih,)))
    expected = [log.history(*place, cap=3) for place in rows]
    assert column(samples, "item") == [[event["item"] for event in of] for of in expected]
    assert column(samples, "artist") == [[event["artist"] for event in of] for of in expected]
    assert column(samples, "album") == [[albums.get(event["item"], -(2**50)) for event in of] for of in expected]
    years = {item: (album - 2**40) // 3 % 7 for item, album in albums.items()}
    assert column(samples, "year") == [[years.get(event["item"], -1) for event in of] for of in expected]


@pytest.mark.parametrize("order", ["adcb", "dabc", "acbd", "a-bc", "bc"])
@pytest.mark.parametrize("sparse", [False, True])
def test_neighbours_of_one_table(tmp_path: Path, order: str, sparse: bool) -> None:
    """Two int64 fields that stand side by side are copied together: b and c of one table, but not a and d of the other,
    as d takes 8 bytes. Both tables have the same ids. `-`: the ids themselves."""
    log = Log.drawn(5, sparse=sparse)
    log.write(tmp_path)
    rows = write_requests(log, tmp_path, seed=5)
    ids = sorted(log.items)
    values = {name: [number * n % 101 for n in range(len(ids))] for name, number in {"a": 3, "b": 5, "c": 7}.items()}
    values["d"] = [2**40 + n for n in range(len(ids))]
    tables = []
    for names in ("ad", "bc"):
        write(tmp_path / f"{names}.parquet", {"item": ids, **{name: values[name] for name in names}})
        default = {name: -ord(name) for name in names if name in order}
        if default:
            source = ParquetSource(tmp_path / f"{names}.parquet")
            tables.append(Lookup(source, on="item", fields=tuple(default), default=default))
    fields = tuple("item" if name == "-" else name for name in (order if "-" in order else f"{order}-"))
    source = ParquetSource(tmp_path / "rows.parquet", join=[as_of(tmp_path, cap=3), *tables])
    samples = read_samples(source, Schema(sequences=(Sequence("uih", fields=(*fields, "ts", "pools"), max_length=9),)))
    seen = [[event["item"] for event in log.history(*place, cap=3)] for place in rows]
    for name in set(order) & set(values):
        by_id = dict(zip(ids, values[name], strict=True))
        assert column(samples, name) == [[by_id.get(item, -ord(name)) for item in of] for of in seen]


def _sparse(file: Path, size: int) -> np.ndarray:
    """uint8 [size], of which the system keeps only what is written."""
    with open(file, "wb") as made:
        made.truncate(size)
    return np.memmap(file, np.uint8, "r+")


@pytest.mark.parametrize("first", [2**31, 2**32, 2**33])
def test_events_beyond_32_bits(tmp_path: Path, first: int) -> None:
    mask = _sparse(tmp_path / "mask", first + 40)
    mask[first - 20 :] = np.arange(60) % 3
    offsets = np.array([0, first - 20, first + 40])
    of = [(np.arange(bit, 60, 3, dtype=np.uint32), np.array([0, 0, 20]), 5) for bit in (1, 2)]
    table = [2, offsets.ctypes.data, 2, 1, mask.ctypes.data]
    table += [number for places, ends, cap in of for number in (places.ctypes.data, ends.ctypes.data, cap)]
    length, scratch = np.empty(1, np.int64), np.empty((2, 8), np.int64)
    histories.merged_lengths(np.array(table), np.array([1]), -1, np.array([first - 20]), np.array([first + 33]), length)
    seen = np.empty(10, np.uint32)
    assert histories.merge_pools(np.array(table), first + 33, seen, *scratch) == first - 20
    assert length[0] == 10
    assert seen.tolist() == [place for place in range(53) if place % 3][-10:]


@pytest.mark.parametrize("first", [2**31, 2**32, 2**33])
def test_values_beyond_32_bits(tmp_path: Path, first: int) -> None:
    values = _sparse(tmp_path / "values", first + 40).view(np.int8)
    values[first - 20 :] = np.arange(60)
    where = run(values.ctypes.data, len(values), runs.PLAIN)
    start, length = np.array([first - 3, first + 33, first - 20]), np.array([7, 5, 60])
    found = Column(where, start, length, stored=INT8).gathered(np.int64, np.array([1, 0, 2]))
    assert found.tolist() == [*range(53, 58), *range(17, 24), *range(60)]


def mixed_samples(rank: int, size: int, folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Row -> history, of a source with pools and one whose lists stand in its rows."""
    with_pools = ParquetSource(folder / "rows.parquet", join=[as_of(folder, cap=3), lookup(folder)], weight=1)
    with_lists = ParquetSource(folder / "lists.parquet", join=[lookup(folder)], defaults={"pools": 0}, weight=1)
    options: dict[str, Any] = {"batch_size": 5, "mix": "weighted", "balance": Balance(), "shuffle": True}
    return by_row(load([with_pools, with_lists], every_row(), **options)[0])


def test_pools_beside_a_source_without_histories(tmp_path: Path) -> None:
    """Then the events of samples that change their rank travel, and not where they lie."""
    log = Log.drawn(3, users=30)
    log.write(tmp_path)
    expected = {row: log.history(*place, cap=3) for row, place in enumerate(write_requests(log, tmp_path, seed=3))}
    random = np.random.default_rng(0)
    lists = [random.integers(-5, 60, random.integers(0, 9)).tolist() for _ in range(50)]
    columns = {
        "row": [1000 + n for n in range(50)],
        "uid": [0] * 50,
        "item": lists,
        "ts": [[5] * len(of) for of in lists],
    }
    write(tmp_path / "lists.parquet", columns, group=10)
    for row, of in zip(columns["row"], lists, strict=True):
        artists = [log.items.get(item, (-1, 0.5)) for item in of]
        expected[row] = [
            {"item": item, "artist": artist, "price": price, "ts": 5, "pools": 0}
            for item, (artist, price) in zip(of, artists, strict=True)
        ]
    found: dict[int, list[dict[str, Any]]] = {}
    for of_rank in shared_world(2).run(mixed_samples, tmp_path):
        found |= of_rank
    assert found == expected


def test_what_a_lookup_finds_is_not_looked_up(tmp_path: Path) -> None:
    artists = Lookup(ParquetSource("items"), on="item", fields=("artist",))
    labels = Lookup(ParquetSource("artists"), on="artist", fields=("ts",))
    for join in ([artists, labels], [labels, artists]):
        schema = Schema(sequences=(Sequence("uih", fields=("item", "artist", "ts")),))
        with pytest.raises(SchemaError, match=r"Lookup\(on='artist'\) has a field of another Lookup as its key"):
            loader_on(ParquetSource("rows", join=join), schema)


def test_rows_that_a_dimension_table_leaves_out_are_no_rows_of_the_loader(tmp_path: Path) -> None:
    """So ranks need not agree on every step."""
    write(tmp_path / "items.parquet", {"item": [1, 2], "artist": [7, None]})
    write(tmp_path / "rows.parquet", {"item": [1, 2]})
    join = Lookup(ParquetSource(tmp_path / "items.parquet", nulls={"artist": "drop"}), on="item", fields=("artist",))
    source, schema = ParquetSource(tmp_path / "rows.parquet", join=join), Schema(context=("item", "artist"))
    assert column(read_samples(source, schema, rank=0, world_size=2), "artist") == [7]
    assert column(read_samples(source, schema), "artist") == [7, 0]


@pytest.mark.parametrize(
    ("default", "message"),
    [
        ({"artist": 0.5}, "artist: the default 0.5 is not an integer within int64"),
        ({"artist": 2**63}, "not an integer within int64"),
        ({"price": 1e300}, "too large for float32"),
    ],
)
def test_a_default_that_its_field_cannot_have(tmp_path: Path, default: dict[str, float], message: str) -> None:
    log = Log.drawn(4)
    log.write(tmp_path)
    write_requests(log, tmp_path, seed=4)
    items = ParquetSource(tmp_path / "items.parquet", columns={"item": "item_id", "artist": "artist_id"})
    join = [as_of(tmp_path), Lookup(items, on="item", fields=("artist", "price"), default=default)]
    with pytest.raises(SchemaError, match=message):
        loader_on(ParquetSource(tmp_path / "rows.parquet", join=join), every_row())
