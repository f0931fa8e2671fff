"""Whatever a file holds and however it was written: the batches are those that pyarrow's decoding makes.

Columns that must be decoded from pages are, so that no test passes because pyarrow has decoded all.
"""

import gc
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import random_files
from data_kit import assert_same, column, loader_on, read, rows_of, write
from hypothesis import given
from hypothesis import strategies as st
from random_files import CODECS, DEFAULTS, LENGTHS, LISTS, batches, columns, numbers, schema

from fsdata import Balance, ParquetSource, Polynomial, Schema, SchemaError, Sequence
from fsdata.decode.plan import DecodePlan
from fsdata.decode.reused_buffers import Pool
from fsdata.errors import CorruptFileError
from fsdata.kernels import columns as of_columns
from fsdata.kernels import runs
from fsdata.pages import kernels as pages
from fsdata.pages.chunk import Damaged, Page, read_column
from fsdata.pages.forms import Form
from fsdata.pages.kernels import headers, indices

SEEDS = st.integers(0, 1 << 30)


def compared(path: Path, left: dict[str, Any] | None = None, *, plain: Path | None = None, **options: Any) -> int:
    """How many rows. left: field -> reasons for which pyarrow must decode it; others it must not. plain: another file
    of the same rows, for pyarrow."""
    ours, decoder = batches(path, "pages", **options)
    theirs, arrow = batches(plain or path, "pyarrow", **options)
    assert (arrow, decoder["name"]) == ({"name": "pyarrow"}, "pages")
    if not isinstance(theirs, list):
        if isinstance(theirs, CorruptFileError):
            assert isinstance(ours, CorruptFileError)
        else:  # a message, which names the file
            assert ours == theirs.replace(str(plain), str(path))
        return 0
    assert_same(ours, theirs)
    if left is not None and theirs:
        assert {name: list(reasons) for name, reasons in decoder["pyarrow"].items()} == left
        assert decoder["chunks"] > 0 or set(left) == set(LISTS)
    return sum(len(batch.dense) for batch in ours)


@given(
    seed=SEEDS, rows=st.sampled_from([0, 1, 2, 40, 300]), codec=st.sampled_from(CODECS), nulls=st.booleans(),
    holes=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]), page=st.sampled_from([16, 300, 1 << 20]), lengths=st.sampled_from(LENGTHS),
)  # fmt: skip
def test_every_encoding_of_every_type(tmp_path, seed, rows, codec, version, page, nulls, lengths, holes):
    """Read in every way."""
    rng = np.random.default_rng(seed)
    path, plain = tmp_path / "a.parquet", tmp_path / "plain" / "a.parquet"
    made = columns(rng, rows, nulls=nulls, lengths=lengths, holes=holes)
    random_files.write(path, made, rng, compression=codec, data_page_version=version, data_page_size=page)
    # pyarrow writes pages of no values where pages are small, and does not read on after them.
    group = pq.read_metadata(path).row_group(0).num_rows if rows else 1
    write(plain, made, group=group, use_dictionary=False)
    assert compared(path, {}, plain=plain) == rows
    median = int(np.median(made["at"].to_numpy())) if rows else 0
    parts = [{}, {"skip": 40}, {"limit": 31}, {"skip": 17, "limit": 77}, {"filter": pl.col("at") > median}]
    policy = str(rng.choice(["default", "drop"] if holes else ["default", "drop", "error"]))
    source = {**rng.choice(parts), "nulls": dict.fromkeys(DEFAULTS, policy)}
    options = {"shuffle": True, "seed": seed % 100} if rng.random() < 0.5 else {}
    if rng.random() < 0.5:
        options["balance"] = Balance(cost=Polynomial(linear=1, quadratic=1))
    wanted = schema(rng.choice([None, 1, 7, 100]), str(rng.choice(["first", "last"])))
    compared(path, {}, plain=plain, wanted=wanted, source=source, **options)


@given(seed=SEEDS, codec=st.sampled_from(CODECS), writer=st.sampled_from(["polars", "duckdb"]))
def test_other_writers(tmp_path, seed, codec, writer):
    rng = np.random.default_rng(seed)
    path = tmp_path / "a.parquet"
    shape = str(rng.choice(["short", "long", "equal"]))
    table = pa.table(columns(rng, 300, nulls=rng.random() < 0.5, lengths=shape))
    codec = {"none": "uncompressed", "lz4": "lz4" if writer == "polars" else "lz4_raw"}.get(codec, codec)
    if writer == "polars":
        pl.from_arrow(table).write_parquet(path, compression=codec, row_group_size=130, data_page_size=500)
    else:
        with duckdb.connect() as base:
            base.register("made", table)
            version = "v2" if rng.random() < 0.5 else "v1"
            how = f"format parquet, compression {codec}, parquet_version {version}, row_group_size 2048"
            base.execute(f"copy made to '{path}' ({how})")
        if version == "v2" and isinstance(batches(path, "pyarrow")[0], CorruptFileError):
            assert compared(path) == 0  # deltas of int32 in more than 32 bits, which pyarrow refuses
            return
    assert compared(path, {}) == 300


@pytest.mark.parametrize(("kind", "name"), [(pa.uint64(), "uint64"), (pa.date32(), "date32")])
def test_types_that_are_left_to_pyarrow(tmp_path, kind, name):
    rng = np.random.default_rng(1)
    made = columns(rng, 60, nulls=False, lengths="short")
    made["kinds"] = pa.ListArray.from_arrays(pa.array(range(61), pa.int32()), numbers(rng, 60, kind))
    write(tmp_path / "a.parquet", made)
    reason = [f"{'uint64' if name == 'uint64' else 'date32[day]'} stored as {'INT64' if name == 'uint64' else 'INT32'}"]
    assert compared(tmp_path, {"kinds": reason}) == 60


def test_nothing_keeps_a_loader_that_was_dropped(tmp_path):
    """Its plans refer to the source, and so to the user's filesystem, filter and functions."""
    write(tmp_path / "a.parquet", {"at": pa.array([[n] * 50 for n in range(100)]), "n": range(100)})
    wanted = Schema(context=("n",), sequences=Sequence("seen", ("at",)))

    def plans() -> int:
        gc.collect()
        every = (each for each in gc.get_objects() if type(each) is DecodePlan)
        return sum(each.source.path_list == (str(tmp_path),) for each in every)

    with loader_on(ParquetSource(tmp_path, decoder="pages", filter=pl.col("n") > 5), wanted, batch_size=50) as loader:
        assert len(rows_of(loader, "n")) == 94
        assert plans() > 1
    del loader
    assert plans() == 0


@pytest.mark.parametrize("first", [False, True])
def test_times_of_files_that_store_them_differently(tmp_path, first):
    """Microseconds are read from INT64 and INT96, and so the files have one schema for Arrow."""
    at = pa.array([list(range(n, n + 10)) for n in range(0, 1000, 10)], pa.list_(pa.timestamp("us")))
    for name, old in (("a", first), ("b", not first)):
        write(tmp_path / f"{name}.parquet", {"at": at}, use_deprecated_int96_timestamps=old)
    wanted = Schema(sequences=Sequence("seen", ("at",)))
    for decoder in ("pages", "pyarrow"):
        with loader_on(ParquetSource(tmp_path, decoder=decoder), wanted, batch_size=50) as loader:
            assert rows_of(loader, "at") == [*range(1000)] * 2
            said = loader.describe()[0]["decoder"]
            assert said.get("pyarrow") == (
                None if decoder == "pyarrow" else {"at": {"timestamp[us] stored as INT96": 1}}
            )


def test_brotli_is_left_to_pyarrow(tmp_path):
    made = columns(np.random.default_rng(2), 60, nulls=False, lengths="equal")
    write(tmp_path / "a.parquet", made, compression="brotli")
    assert compared(tmp_path, {name: ["compressed by BROTLI"] for name in LISTS}) == 60


def test_elements_that_are_null_or_not_finite_are_left_to_pyarrow_only_where_they_are_errors(tmp_path):
    made = columns(np.random.default_rng(2), 60, nulls=False, lengths="equal")
    made["kinds"] = pa.array([[1, None, n] for n in range(60)], pa.list_(pa.int32()))
    costs = np.where(np.arange(len(made["costs"].values)) == 7, np.nan, made["costs"].values.to_numpy(False))
    made["costs"] = pa.ListArray.from_arrays(made["costs"].offsets, pa.array(costs, pa.float64()))
    write(tmp_path / "a.parquet", made)
    null, not_finite = ["elements of lists that are null"], ["numbers that are not finite"]
    for kinds, costs, rows, left in (
        ("default", "default", 60, {}),
        ("default", "drop", 59, {}),
        ("drop", "default", 0, {}),
        ("error", "default", 0, {"kinds": null}),
        ("default", "error", 0, {"costs": not_finite}),
    ):
        assert compared(tmp_path, source={"nulls": {"kinds": kinds, "costs": costs}}) == rows
        decoder = batches(tmp_path, "pages", source={"nulls": {"kinds": kinds, "costs": costs}})[1]
        assert {name: list(reasons) for name, reasons in decoder["pyarrow"].items()} == left


@pytest.mark.parametrize("page", [8, 1 << 20])
@pytest.mark.parametrize("times", [1, 40])
def test_null_elements_wherever_they_stand(tmp_path, page, times):
    """At the ends of lists and of pages, alone, between null and empty lists; in short lists and in long ones."""
    pattern = [[None], [1, None], [None, 2], [], [None] * 9, None, [3, 4, 5], [None, 6, None], [7, None, 8], None, []]
    lists = [each and each * times for each in pattern]
    made = columns(np.random.default_rng(6), len(lists), nulls=False, lengths="short")
    made["kinds"] = pa.array(lists, pa.list_(pa.int64()))
    path = tmp_path / "a.parquet"
    write(path, made, data_page_size=page, write_batch_size=2, use_dictionary=False)
    filled = [[4 if value is None else value for value in each or []] for each in lists]
    for policy, kept in (
        ("default", filled),
        ("drop", [each for each in lists if each is not None and None not in each]),
    ):
        source = {"nulls": {"kinds": policy}}
        assert compared(path, {}, source=source) == len(kept)
        given = ParquetSource(path, decoder="pages", defaults=DEFAULTS, **source)
        assert column(read(given, schema()), "kinds") == kept


def test_a_dictionary_that_overflows_within_a_list(tmp_path):
    path = tmp_path / "a.parquet"
    item = pa.array([list(range(n, n + 900)) for n in range(30)], pa.list_(pa.int64()))
    made = columns(np.random.default_rng(3), 30, nulls=False, lengths="short") | {"kinds": item}
    write(path, made, dictionary_pagesize_limit=2000, data_page_size=700)
    assert {"PLAIN", "RLE_DICTIONARY"} <= set(pq.read_metadata(path).row_group(0).column(4).encodings)
    assert compared(path, {}) == 30
    assert compared(path, {}, shuffle=True, source={"skip": 3, "limit": 9}) == 9


def page(number: int, repetition: list[int], values: list[int]) -> Page:
    """A page of a list that is never null, as other writers than pyarrow make them: it may end within a row."""
    header = np.zeros(headers.COLUMNS, np.int64)
    header[[headers.KIND, headers.VALUES, headers.ENCODING]] = headers.DATA, len(values), headers.PLAIN
    header[headers.LEVELS] = headers.RLE
    runs_of = [b"".join(bytes([2, each]) for each in levels) for levels in (repetition, [1] * len(values))]
    content = b"".join(len(each).to_bytes(4, "little") + each for each in runs_of) + np.array(values).tobytes()
    raw = np.frombuffer(content, np.uint8)
    header[[headers.ADDRESS, headers.UNPACKED]] = raw.ctypes.data, len(raw)
    return Page(header, raw, number)


def test_rows_that_go_on_in_the_next_page():
    form = Form("INT64", 1, 0, of_columns.SAME, np.int64)
    found = [page(0, [0, 1, 1], [1, 2, 3]), page(1, [1, 0], [4, 5]), page(2, [1, 0], [6, 7])]
    for stop, lengths in ((0, [3, 0, 0]), (1, [4, 1, 0]), (2, [4, 2, 1]), (3, [4, 2, 1])):
        column = read_column(found, form, 3, stop, Pool())
        assert column.length.tolist() == lengths
        assert column.values.tolist() == list(range(1, sum(lengths) + 1))
    with pytest.raises(Damaged, match="2 rows, but the footer states 3"):
        read_column(found[:2], form, 3, 3, Pool())
    with pytest.raises(Damaged, match="invalid levels"):
        read_column(found[1:], form, 3, 3, Pool())


@pytest.mark.parametrize("width", [1, 3, 7, 8, 17, 31, 32])
def test_no_word_is_read_beyond_a_page(width):
    for groups in (1, 2, 9, 40):
        raw = np.zeros(2 + groups * width, np.uint8)
        raw[:2] = width, groups << 1 | 1
        tail, table = np.empty(indices.TAIL + 8, np.uint8), np.empty((2, runs.COLUMNS), np.int64)
        address, count = raw.ctypes.data, groups * 8
        code, written = indices.index_positions(raw, 0, len(raw), address, count, 1 << 32, tail, table, 0)
        assert code == pages.OK
        firsts = table[:written, runs.FIRST].tolist()
        held = [(address, address + len(raw)), (tail.ctypes.data, tail.ctypes.data + len(tail))]
        for first, at, stop in zip(firsts, table[:written, runs.AT].tolist(), [*firsts[1:], count], strict=True):
            last = at + ((stop - first - 1) * width >> 3) + 8
            assert any(begin <= at and last <= end for begin, end in held)


def test_damage_is_named_with_column_and_page(tmp_path):
    path = tmp_path / "a.parquet"
    made = columns(np.random.default_rng(4), 60, nulls=False, lengths="long")
    write(path, made, use_dictionary=False, write_page_checksum=True, compression="none")
    chunk = pq.read_metadata(path).row_group(0).column(3)
    raw = bytearray(path.read_bytes())
    raw[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptFileError, match=r"a\.parquet, row group 0: .*column 'items', page 0: .*checksum"):
        raise batches(path, "pages")[0]


def test_the_environment_chooses_the_decoder(tmp_path, monkeypatch):
    write(tmp_path / "a.parquet", columns(np.random.default_rng(5), 9, nulls=False, lengths="short"))
    monkeypatch.setenv("FSDATA_DECODER", "pyarrow")
    assert batches(tmp_path, None)[1] == {"name": "pyarrow"}
    assert batches(tmp_path, "pages")[1]["name"] == "pages"
    monkeypatch.setenv("FSDATA_DECODER", "arrow")
    with pytest.raises(SchemaError, match="FSDATA_DECODER must be pages or pyarrow, got 'arrow'"):
        batches(tmp_path, None)
    with pytest.raises(SchemaError, match="decoder must be"):
        ParquetSource(tmp_path, decoder="arrow")
