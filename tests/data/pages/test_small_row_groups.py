"""Small row groups that follow each other are decoded together: the same batches, faults and places as one by one."""

from itertools import islice
from pathlib import Path
from typing import Any

import compact_thrift as thrift
import damaged
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import random_files
import torch
from data_kit import load, loader_on, tensors, write
from footers import footer_of
from hypothesis import given
from hypothesis import strategies as st

from fsdata import CorruptFileError, DataError, Join, ParquetSource, Schema, Sequence
from fsdata.decode.opened_source import OpenSource

SCHEMA = Schema(
    sequences=(Sequence("uih", ("item",), floats=("price",), max_length=5), Sequence("seen", ("kind",))),
    context=("user",),
    dense=("age",),
    labels=("click",),
    passthrough=("row", "name"),
)


def samples(rng: np.random.Generator, rows: int, *, nulls: float = 0.0) -> pa.Table:
    """nulls: which share of users, ages and lists is null."""
    lengths = [rng.integers(0, 9, rows) * rng.integers(0, 2, rows) for _ in range(2)]
    offsets = [pa.array(np.concatenate([[0], np.cumsum(each)]), pa.int32()) for each in lengths]
    total, seen = (int(each.sum()) for each in lengths)
    missing = [rng.random(rows) < nulls for _ in range(4)]
    return pa.table(
        {
            "row": np.arange(rows),
            "user": pa.array(rng.integers(0, 1000, rows).astype(np.int32), mask=missing[0]),
            "age": pa.array(rng.random(rows).astype(np.float32), mask=missing[1]),
            "click": rng.integers(0, 2, rows).astype(np.float32),
            "name": [str(n % 13) * (n % 4) for n in range(rows)],
            "item": pa.ListArray.from_arrays(
                offsets[0], pa.array(rng.integers(0, 99, total)), mask=pa.array(missing[2])
            ),
            "price": pa.ListArray.from_arrays(
                offsets[0], pa.array(rng.random(total), pa.float32()), mask=pa.array(missing[2])
            ),
            "kind": pa.ListArray.from_arrays(
                offsets[1], pa.array(rng.integers(0, 9, seen), pa.int32()), mask=pa.array(missing[3])
            ),
        }
    )


def write_groups(path: Path, table: pa.Table, sizes: list[int], **options: Any) -> None:
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        first = 0
        for size in sizes:
            writer.write_table(table.slice(first, size), row_group_size=size)
            first += size


def contents(batch: Any) -> dict[str, Any]:
    found = {name: of.tolist() if isinstance(of, torch.Tensor) else of for name, of in tensors(batch).items()}
    return found | {"stats": batch.stats}


@pytest.fixture
def together(monkeypatch) -> list[int]:
    """How many row groups each piece had that was decoded at once without a fault, and -1 of those with one."""
    found, read = [], OpenSource.read_together

    def counted(source, groups, layout, **options):
        rows = read(source, groups, layout, **options)
        found.append(-1 if rows is None else len(groups))
        return rows

    monkeypatch.setattr(OpenSource, "read_together", counted)
    return found


def loaded(source: ParquetSource, schema: Schema = SCHEMA, after: int = 0, **options: Any) -> Any:
    """(the batches behind the first `after`, the message of the error that ended them, what was skipped, the state)."""
    found, error, skipped, state = [], None, [], None
    try:
        with loader_on(source, schema, **options) as loader:
            batches = iter(loader)
            if list(islice(batches, after)):
                loader.load_state_dict(loader.state_dict())
                batches = iter(loader)
            try:
                found += map(contents, batches)
            finally:
                skipped = [(each.file, each.row_group, each.rows, each.reason) for each in loader.skipped]
                state = loader.state_dict()
    except (DataError, CorruptFileError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    return found, error, skipped, state


def one_by_one(*arguments: Any, **options: Any) -> Any:
    """See `loaded`; every row group is read alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fsdata.nodes.dataset.coalesced", lambda stream, small: iter(stream))
        return loaded(*arguments, **options)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"skip": 37, "limit": 200},
    {"skip": 300},
    {"limit": 5},
    {"filter": pl.col("row") % 3 == 0},
    {"filter": pl.col("user") < 0},
    {"decoder": "pyarrow"},
    {"decoder": "pages"},
    {"columns": {"user": pl.col("user") * 2 + 1}},
    {"on_error": "skip"},
]
POLICIES: list[dict[str, Any]] = [
    {"nulls": dict.fromkeys(("user", "item", "price", "kind", "age"), "drop")},
    {"defaults": {"user": 7, "item": 3, "price": 0.5, "kind": 2, "age": -1.0}},
    {},
]


@given(
    seed=st.integers(0, 2**32 - 1), files=st.integers(1, 3), nulls=st.sampled_from([0.0, 0.0, 0.02, 0.5]),
    options=st.sampled_from(OPTIONS), policy=st.sampled_from(POLICIES), threads=st.integers(1, 3),
    after=st.sampled_from([0, 0, 1, 4]), batch_size=st.sampled_from([1, 16, 100]),
)  # fmt: skip
def test_batches_are_those_of_row_groups_read_alone(
    tmp_path_factory, seed, files, nulls, options, policy, threads, after, batch_size
):
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("files")
    for number in range(files):
        sizes = [int(rng.choice([1, 2, 30, 300], p=[0.3, 0.3, 0.35, 0.05])) for _ in range(int(rng.integers(1, 20)))]
        table = samples(rng, sum(sizes), nulls=nulls)
        write_groups(folder / f"{number}.parquet", table, sizes, compression=str(rng.choice(["zstd", "none"])))
    source = ParquetSource(folder, **options, **policy)
    given = {"num_threads": threads, "after": after, "batch_size": batch_size}
    assert loaded(source, **given) == one_by_one(source, **given)


def states(source: ParquetSource, after: int = 0) -> list[Any]:
    """The state after each batch of one row, from that behind the first `after` on."""
    with loader_on(source, Schema(context=("user",)), batch_size=1) as loader:
        if after:
            list(islice(iter(loader), after))
            loader.load_state_dict(loader.state_dict())
        return [loader.state_dict() for _ in loader]


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize(
    ("kept", "every"),
    [((0, 5, 8, 11), 4), ((0, 1, 3, 10), 4), ((2,), 3), ((1, 6, 7, 11), 3), (tuple(range(12)), 4), ((3, 4), 2)],
    ids=str,
)
def test_states_are_those_of_row_groups_read_alone(tmp_path, together, kept, every, after):
    """Dropped rows at the end of a row group are passed with its last one that is kept, at the beginning of the next
    with the first one there, and a whole row group of dropped rows with the row behind it."""
    rows, sizes = pa.table({"user": range(12)}), [every] * (12 // every)
    write_groups(tmp_path / "a.parquet", rows, sizes, write_statistics=False)  # the filter leaves out rows only
    source = ParquetSource(tmp_path, filter=pl.col("user").is_in(kept))
    found = states(source, after)
    assert max(together, default=0) > 1 or after
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fsdata.nodes.dataset.coalesced", lambda stream, small: iter(stream))
        assert found == states(source, after)


@pytest.mark.parametrize("rank", [0, 1])
def test_row_groups_of_a_rank_are_not_neighbours_in_the_file(tmp_path, together, rank):
    write_groups(tmp_path / "a.parquet", samples(np.random.default_rng(0), 300), [10] * 30)
    options = {"rank": rank, "world_size": 2}
    assert loaded(ParquetSource(tmp_path), **options) == one_by_one(ParquetSource(tmp_path), **options)
    assert together == [14]


def test_small_row_groups_of_a_file_are_decoded_together(tmp_path, together):
    """The first is read alone, as the first batch waits for it; no piece has many rows."""
    rng = np.random.default_rng(0)
    write_groups(tmp_path / "a.parquet", samples(rng, 12_000), [100] * 120)
    write_groups(tmp_path / "b.parquet", samples(rng, 30), [10] * 3)
    flat = Schema(context=("user",), dense=("age",))
    batches, loader = load(tmp_path, flat, batch_size=512, num_threads=None)
    assert sum(map(len, batches)) == 12_030
    assert sum(together) == 119 + 3
    assert max(together) <= 83
    assert loader.describe()[0]["decoder"]["pyarrow"] == {}
    together.clear()
    batches, loader = load(tmp_path, SCHEMA, batch_size=512, num_threads=None)
    assert sum(map(len, batches)) == 12_030
    left = loader.describe()[0]["decoder"]
    chunks = sum(together)
    assert chunks > 100
    assert left["chunks"] == 3 * (123 - chunks)
    why = {"small row groups, decoded together": chunks}
    assert left["pyarrow"] == {"item": why, "kind": why, "name": why | {"text": 123 - chunks}, "price": why}


@pytest.mark.parametrize(
    "options",
    [
        {"source": {"map": lambda batch: batch}},
        {"source": {"decoder": "pages"}},
        {"shuffle": True},
        {"source": {"skip": 5, "limit": 20}},
        {"groups": [5000] * 3},
    ],
    ids=["map", "pages", "shuffle", "parts", "long"],
)
def test_others_are_read_alone(tmp_path, together, options):
    sizes = options.pop("groups", [10] * 20)
    write_groups(tmp_path / "a.parquet", samples(np.random.default_rng(0), sum(sizes)), sizes)
    loaded(ParquetSource(tmp_path, **options.pop("source", {})), **options)
    assert together == []


def test_long_lists_stay_with_the_page_decoder(tmp_path, together):
    ids = np.random.default_rng(0).integers(0, 1 << 40, 4000 * 20)
    lists = pa.ListArray.from_arrays(np.arange(0, len(ids) + 1, 4000, dtype=np.int32), pa.array(ids))
    write(tmp_path / "a.parquet", {"item": lists}, group=5)
    batches, loader = load(tmp_path, Schema(sequences=(Sequence("s", ("item",)),)))
    assert sum(map(len, batches)) == 20
    assert loader.describe()[0]["decoder"]["chunks"] == 4
    assert together == []


def test_side_tables_are_joined_to_rows_of_several_row_groups(tmp_path, together):
    rng = np.random.default_rng(0)
    table = samples(rng, 200)
    write(tmp_path / "main" / "a.parquet", table.drop_columns(["age"]), group=10)
    write(tmp_path / "side" / "b.parquet", {"user": range(0, 1000, 2), "age": np.arange(500.0)})
    side = Join(ParquetSource(tmp_path / "side", nulls={"age": "drop"}), on="user", fields=("age",))
    source = ParquetSource(tmp_path / "main", join=[side])
    assert loaded(source) == one_by_one(source)
    assert sum(together) == 19
    strict = ParquetSource(tmp_path / "main", join=[Join(ParquetSource(tmp_path / "side"), on="user", fields=("age",))])
    ours = loaded(strict)
    assert "row group" in ours[1]
    assert ours == one_by_one(strict)


def broken(path: Path, group: int, change: Any) -> None:
    """Change the last page of the first column chunk of a row group; `change` gets its header and its bytes."""
    raw = path.read_bytes()
    footer = footer_of(raw)
    chunk = footer[4].values[group][1].values[0][3]
    at, begin, end, header = list(damaged._pages(raw, chunk))[-1]
    body = bytearray(raw[begin:end])
    change(header, body)
    new = thrift.write_struct(header) + body
    assert len(new) == end - at
    path.write_bytes(raw[:at] + new + raw[end:])


def one_more(header: Any, body: bytearray) -> None:
    header[header[1] + 5][1] += 1


def other_byte(header: Any, body: bytearray) -> None:
    body[-1] ^= 255


def no_repetition(header: Any, body: bytearray) -> None:
    """The second element of the last list begins a row."""
    levels = b"\x05\xaa\x02"  # two groups of eight: 0 1 0 1 0 1 0 1, 0 1
    body[body.index(levels) + 2] ^= 2


DAMAGES = {
    "checksum": ({"user": list(range(50))}, {"context": ("user",)}, other_byte, {"write_page_checksum": True}),
    "a value more than there is": (
        {"user": [n % 7 for n in range(50)], "second": list(range(50))},
        {"context": ("user", "second")},
        one_more,
        {"use_dictionary": ["user"]},
    ),
    "a row more than there is": (
        {"user": [[n, n] for n in range(50)], "second": list(range(50))},
        {"context": ("second",), "sequences": (Sequence("s", ("user",)),)},
        no_repetition,
        {"use_dictionary": False},
    ),
}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_that_of_its_row_group(tmp_path, together, damage, on_error):
    """Also where pyarrow would read all row groups, with the rows behind the damage moved."""
    made, fields, change, options = DAMAGES[damage]
    table = pa.table(made)
    table = table.cast(pa.schema([pa.field(each.name, each.type, nullable=False) for each in table.schema]))
    path = tmp_path / "a.parquet"
    plain = {"compression": "none", "write_statistics": False, "write_page_checksum": False}
    write(path, table, group=5, **plain | options)
    broken(path, 4, change)
    wanted, source = Schema(labels=("click",), **fields), ParquetSource(path, on_error=on_error, defaults={"click": 0})
    ours = loaded(source, wanted, batch_size=4)
    assert together == [-1]
    assert ours == one_by_one(source, wanted, batch_size=4)
    if damage != "a value more than there is":  # pyarrow does not read it where it reads the row group alone
        assert "row group 4" in ours[1] if on_error == "raise" else ours[2][0][1:3] == (4, 5)


@pytest.mark.parametrize("decoder", ["pages", "pyarrow"])
def test_a_null_is_found_in_its_row_group(tmp_path, decoder):
    """Batches before it are given, and the state is that behind them, also where rows can drop out."""
    user = [None if n == 73 else n for n in range(100)]
    write(tmp_path / "a.parquet", {"user": user, "row": range(100)}, group=10)
    wanted = Schema(context=("user",), labels=("click",))
    source = ParquetSource(tmp_path, decoder=decoder, defaults={"click": 0}, filter=pl.col("row") >= 0)
    found, error, _, state = ours = loaded(source, wanted, batch_size=10)
    assert ours == one_by_one(source, wanted, batch_size=10)
    assert len(found) == 7
    assert state["positions"] == [70]
    assert "a.parquet, row group 7, row 3: user is null" in str(error)


def test_random_damage_is_refused_or_read_as_in_row_groups_read_alone(tmp_path):
    """With either decoder and policy."""
    path = tmp_path / "a.parquet"
    wanted = random_files.schema(max_length=50)
    differ, refused = [], 0
    for seed in range(30):
        damage, raw = damaged.damaged(seed, pages=True)
        path.write_bytes(raw)
        for on_error in ("raise", "skip"):
            source = ParquetSource(path, defaults=random_files.DEFAULTS, on_error=on_error, decoder="pyarrow")
            ours, alone = loaded(source, wanted), one_by_one(source, wanted)
            if ours != alone:
                differ.append((seed, damage, on_error))
            refused += bool(alone[1] or alone[2])
    assert differ == []
    assert refused > 10
