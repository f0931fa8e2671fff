"""Pages without a needed row are not unpacked, and the batches are those that pyarrow's decoding makes.

What is skipped is counted by a reader of its own (`pages_of`), so that no test passes because all pages were read.
"""

import random
from pathlib import Path
from typing import Any

import compact_thrift as thrift
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from footers import change, footer_of, with_footer
from parquet import opened, values

from fsdata import CorruptFileError, FreeScaleDataLoader, ParquetSource, Schema, Sequence
from fsdata.decode.pages import page_rows
from fsdata.kernels import footer as kernel
from fsdata.kernels.pages import fetch, headers, locations

ROWS, GROUP = 1200, 600
DEFAULTS = {"user": 7, "price": -1.5, "items": 3, "kinds": 4, "costs": 0.5}
SCHEMA = Schema(
    sequences=[Sequence("uih", fields=("items",), floats=("costs",)), Sequence("seen", fields=("kinds",))],
    context=("user", "at"),
    dense=("price",),
)
LEAVES = ("at", "user", "price", "items", "costs", "kinds")
LISTS = ("items", "costs", "kinds")
AT = pl.col("at")
PARTS = {
    "first rows": {"limit": 30},
    "last rows": {"skip": ROWS - 30},
    "over two row groups": {"skip": GROUP - 20, "limit": 40},
    "some of a sorted column": {"filter": AT.is_between(2100, 2400)},
    "here and there": {"filter": AT.is_in([0, 900, 903, 1790, 1800, 3597])},
    "what no bound tells": {"filter": (AT % 900 == 3) | (AT == 3597)},
    "none in a row group": {"filter": AT * 1 < 100},
    "filter and part": {"filter": AT > 1500, "skip": 200, "limit": 400},
}


def table() -> pa.Table:
    """`at` is 0, 3, 6, ...; lists are short, but in `kinds`."""
    rng = np.random.default_rng(5)

    def of_lists(most: int, least: int, kind: pa.DataType, nulls: bool) -> pa.Array:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(least, most, ROWS))])
        elements = pa.array(rng.integers(0, 40, int(offsets[-1])), pa.int64()).cast(kind)
        mask = pa.array(np.arange(ROWS) % 11 == 4) if nulls else None
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, mask=mask)

    items = of_lists(9, 0, pa.int64(), nulls=False)
    elements = pa.array(rng.normal(size=len(items.values)), pa.float32())
    return pa.table(
        {
            "at": pa.array(3 * np.arange(ROWS)),
            "user": pa.array([None if n % 7 == 2 else n * n for n in range(ROWS)], pa.int32()),
            "price": pa.array(rng.normal(size=ROWS), pa.float64()),
            "items": items,
            "costs": pa.ListArray.from_arrays(items.offsets, elements),
            "kinds": of_lists(60, 35, pa.int32(), nulls=True),
        }
    )


def write(path: Path, *, version: str = "1.0", index: bool = True, **options: Any) -> Path:
    shape = {"data_page_size": 300, "write_batch_size": 8, "row_group_size": GROUP, "write_page_checksum": True}
    options = {**shape, "use_dictionary": ["user", "kinds.list.element"], "compression": "zstd", **options}
    pq.write_table(table(), path, data_page_version=version, write_page_index=index, **options)
    return path


def batches(path: Path, decoder: str = "pages", **source: Any) -> tuple[list[Any], dict[str, Any]]:
    given = ParquetSource(path, decoder=decoder, defaults=DEFAULTS, **source)  # type: ignore[arg-type]
    with FreeScaleDataLoader(given, SCHEMA, batch_size=32, rank=0, world_size=1) as loader:
        return list(loader), loader.describe()[0]["decoder"]


def assert_equal(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine.features.values(), other.features.values())
        assert torch.equal(mine.features.lengths(), other.features.lengths())
        assert torch.equal(mine.dense, other.dense)
        assert torch.equal(mine.jagged["costs"].values, other.jagged["costs"].values)
        assert torch.equal(mine.origin, other.origin)


def pages_of(path: Path) -> dict[tuple[int, str], list[tuple[int, int]]]:
    """(row group, leaf) -> [first row, first row after it) of its data pages, from the offset index."""
    raw, found = path.read_bytes(), {}
    for group, row_group in enumerate(footer_of(raw)[4].values):
        for leaf, column in zip(LEAVES, row_group[1].values, strict=True):
            index = thrift.read_struct(raw, column[4])[0]
            first = [location[3] for location in index[1].values]
            found[group, leaf] = list(zip(first, [*first[1:], row_group[3]], strict=True))
    return found


def without_row(path: Path, rows: np.ndarray, *, left_out: tuple[str, ...] = ()) -> int:
    """How many data pages have none of `rows`, which are numbers in the file; of row groups that have some of them.

    left_out: leaves that do not count.
    """
    count = 0
    for (group, leaf), pages in pages_of(path).items():
        here = rows[(rows >= group * GROUP) & (rows < (group + 1) * GROUP)] - group * GROUP
        if len(here) and leaf not in left_out:
            count += sum(not ((here >= begin) & (here < end)).any() for begin, end in pages)
    return count


def kept(part: dict[str, Any]) -> np.ndarray:
    """The rows, in the file, that a source reads."""
    at = pl.from_arrow(table()).with_row_index("row")
    begin, count = part.get("skip", 0), part.get("limit", ROWS)
    some = at.slice(begin, count)
    return some.filter(part.get("filter", True))["row"].to_numpy()


@pytest.mark.parametrize(
    ("version", "index"),
    [
        ("1.0", True),
        ("2.0", False),
        pytest.param("1.0", False, marks=pytest.mark.long),
        pytest.param("2.0", True, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("part", PARTS)
def test_pages_without_a_needed_row_are_skipped(tmp_path, version, index, part):
    path = write(tmp_path / "a.parquet", version=version, index=index)
    same_pages = write(tmp_path / "with index.parquet", version=version)
    theirs, _ = batches(path, "pyarrow", **PARTS[part])
    ours, decoder = batches(path, **PARTS[part])
    assert_equal(ours, theirs)
    rows = kept(PARTS[part])
    assert sum(len(batch.dense) for batch in ours) == len(rows)
    unknown = LISTS if version == "1.0" and not index else ()
    expected = without_row(same_pages, rows, left_out=unknown)
    assert decoder["skipped_pages"] == expected
    assert expected > 0 or len(rows) == 0
    assert decoder["pyarrow"] == {}


def test_all_rows_are_read_without_an_offset_index(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet")
    monkeypatch.setattr(locations, "read_locations", None)
    ours, decoder = batches(path)
    assert_equal(ours, batches(path, "pyarrow")[0])
    assert decoder["skipped_pages"] == 0


@pytest.mark.parametrize(
    ("version", "condition", "parts"),
    [
        ("1.0", AT % 30 == 0, 12),
        ("2.0", None, 12),
        pytest.param("1.0", None, 60, marks=pytest.mark.long),
        pytest.param("1.0", AT % 30 == 0, 60, marks=pytest.mark.long),
        pytest.param("2.0", None, 60, marks=pytest.mark.long),
        pytest.param("2.0", AT % 30 == 0, 60, marks=pytest.mark.long),
    ],
)
def test_every_part_of_a_row_group(tmp_path, version, condition, parts):
    path = write(tmp_path / "a.parquet", version=version)
    source, layout = opened(ParquetSource(path, defaults=DEFAULTS, filter=condition), SCHEMA)
    arrow, _ = opened(ParquetSource(path, defaults=DEFAULTS, filter=condition, decoder="pyarrow"), SCHEMA)
    group = source.groups[1]
    rng = random.Random(1)
    for _ in range(parts):
        start = rng.randrange(GROUP)
        stop = min(start + rng.choice([0, 1, 2, 13, 100, GROUP]), GROUP)
        mine, other = (each.read(group, layout, start, stop) for each in (source, arrow))
        assert values(mine.table, layout) == values(other.table, layout)
        assert np.array_equal(mine.kept, other.kept) if condition is not None else mine.kept is other.kept is None
    assert source.describe()["decoder"]["skipped_pages"] > 15 * parts
    source.close()
    arrow.close()


def test_a_skipped_page_may_be_damaged_and_a_needed_one_may_not(tmp_path):
    path = write(tmp_path / "a.parquet")
    raw = bytearray(path.read_bytes())
    index = thrift.read_struct(bytes(raw), footer_of(bytes(raw))[4].values[0][1].values[3][4])[0]
    hurt = index[1].values[3]
    raw[hurt[1] + hurt[2] - 1] ^= 1
    path.write_bytes(raw)
    begin, end = pages_of(path)[0, "items"][3]
    part = {"filter": ~AT.is_between(3 * begin, 3 * (end - 1))}
    assert sum(len(batch.dense) for batch in batches(path, **part)[0]) == ROWS - (end - begin)
    for part in ({"filter": AT.is_in([3 * begin])}, {"skip": end - 1, "limit": 1}, {}):
        with pytest.raises(CorruptFileError, match="column 'items', page 3"):
            batches(path, **part)


def test_damage_is_found_by_any_part_where_row_groups_are_left_out(tmp_path):
    path = write(tmp_path / "a.parquet")
    raw = bytearray(path.read_bytes())
    raw[pq.read_metadata(path).row_group(0).column(3).data_page_offset + 60] ^= 255
    path.write_bytes(raw)
    for part in ({"filter": AT == 1500}, {"filter": AT > 1700}, {"skip": 500}):
        ours, decoder = batches(path, on_error="skip", **part)
        assert_equal(ours, batches(path, "pyarrow", on_error="skip", **part)[0])
        assert decoder["skipped_pages"] == 0


def test_values_that_pyarrow_must_decode_are_found_after_the_filter(tmp_path):
    made = table()
    price = np.where(np.arange(ROWS) % 300 == 299, np.nan, made["price"].to_numpy())
    made = made.set_column(2, "price", pa.array(price))
    path = tmp_path / "a.parquet"
    small = {"data_page_size": 300, "write_batch_size": 8, "row_group_size": GROUP, "use_dictionary": False}
    pq.write_table(made, path, write_page_index=True, **small)
    part = {"filter": AT.is_between(800, 900)}
    ours, decoder = batches(path, **part)
    assert decoder["pyarrow"] == {"price": {"numbers that are not finite": 1}}
    assert_equal(ours, batches(path, "pyarrow", **part)[0])
    assert batches(path, filter=AT < 800)[1]["pyarrow"] == {}  # these are not in a page that is read


def test_long_lists_stay_in_the_pages_that_are_read(tmp_path):
    path = write(tmp_path / "a.parquet")
    source, layout = opened(ParquetSource(path, defaults=DEFAULTS, filter=AT.is_in([1500, 1503, 1506])), SCHEMA)
    rows = source.read(source.groups[0], layout, 0, GROUP)
    kinds = rows.table.address[layout.slots["kinds"]]
    assert (kinds[rows.table.length[layout.slots["kinds"]] > 1] >> fetch.PAGED_SHIFT == fetch.PAGED).all()
    assert source.describe()["decoder"]["skipped_pages"] > 500
    source.close()


def lie(path: Path, edit: Any, *, leaf: int = 3, group: int = 0) -> Path:
    """Let `edit` change the offset index of a chunk; the new one stands where nothing else does."""
    raw = path.read_bytes()
    footer = footer_of(raw)
    column = footer[4].values[group][1].values[leaf]
    index = thrift.read_struct(raw, column[4])[0]
    made = edit(index)
    new = thrift.write_struct(index) if made is None else made
    at = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    column[4], column[5] = at, len(new)
    path.write_bytes(with_footer(raw[:at] + new + raw[at:], footer))
    return path


def one_more(page: int, number: int) -> Any:
    def edit(index: thrift.Struct) -> None:
        index[1].values[page][number] += 1

    return edit


def pages_fewer(index: thrift.Struct) -> None:
    index[1].values.pop()


def pages_twice(index: thrift.Struct) -> None:
    index[1].values.insert(4, index[1].values[4])


def a_page_after_all(index: thrift.Struct) -> None:
    index[1].values.append(index[1].values[-1])


LIES = {
    "row of the first page": one_more(0, 3),
    "row of a page before": one_more(8, 3),
    "row of a page after": one_more(13, 3),
    "place of a page": one_more(3, 1),
    "size of a page": one_more(3, 2),
    "a page less": pages_fewer,
    "a page twice": pages_twice,
    "a page after all": a_page_after_all,
    "nothing": lambda index: b"\0",
    "cut": lambda index: thrift.write_struct(index)[:-30],
    "a list without an end": lambda index: b"\x19\xfc" + b"\xff" * 9 + b"\x01",
    "too long": lambda index: thrift.write_struct(index) + bytes(1 << 20),
}


@pytest.mark.parametrize("what", LIES)
def test_an_offset_index_that_contradicts_the_pages_is_not_used(tmp_path, what):
    path = write(tmp_path / "a.parquet")
    pages = pages_of(path)[0, "items"]
    assert len(pages) > 20
    part = {"filter": AT.is_between(3 * pages[8][0], 3 * (pages[13][0] - 1))}
    theirs, _ = batches(path, "pyarrow", **part)
    all_skipped = batches(path, **part)[1]["skipped_pages"]
    lie(path, LIES[what])
    ours, decoder = batches(path, **part)
    assert_equal(ours, theirs)
    assert decoder["skipped_pages"] == all_skipped - (len(pages) - 5)


def test_rows_that_headers_of_version_2_say_wrongly(tmp_path):
    path = write(tmp_path / "a.parquet", version="2.0", index=False, compression="none")
    part = {"filter": AT.is_between(600, 900)}
    theirs, _ = batches(path, "pyarrow", **part)
    skipped = batches(path, **part)[1]["skipped_pages"]
    raw = path.read_bytes()
    chunk = footer_of(raw)[4].values[0][1].values[3][3]
    at = chunk[9]
    made = bytearray(raw)
    for number in range(50):  # in all there are as many rows as before
        header, body = thrift.read_struct(raw, at)
        header[8][3] += 1 if number % 2 == 0 else -1
        new = thrift.write_struct(header)
        assert len(new) == body - at
        made[at:body] = new
        at = body + header[3]
    assert at < chunk[9] + chunk[7]
    path.write_bytes(made)
    ours, decoder = batches(path, **part)
    assert_equal(ours, theirs)
    assert 0 < decoder["skipped_pages"] < skipped


def damage(path: Path, seed: int) -> None:
    """Some bits of the offset indexes, or of where the footer says that they are."""
    rng = random.Random(seed)
    raw = bytearray(path.read_bytes())
    columns = [column for group in footer_of(bytes(raw))[4].values for column in group[1].values]
    for _ in range(rng.choice([1, 1, 2, 5, 40])):
        column = rng.choice(columns)
        raw[column[4] + rng.randrange(column[5])] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)
    if rng.random() < 0.2:

        def elsewhere(footer: thrift.Struct) -> None:
            for _ in range(3):
                column = rng.choice([one for group in footer[4].values for one in group[1].values])
                number = rng.choice([4, 5])
                wrong = [column[number] + 1, -1, 0, 1 << 31 if number == 4 else 1 << 30, rng.choice(columns)[number]]
                column[number] = rng.choice(wrong)

        change(path, elsewhere)


@pytest.mark.parametrize("files", [24, pytest.param(400, marks=pytest.mark.long)])
def test_damaged_offset_indexes_change_no_row(tmp_path, files):
    path = write(tmp_path / "a.parquet")
    raw = path.read_bytes()
    parts = [PARTS["some of a sorted column"], PARTS["over two row groups"], PARTS["here and there"]]
    right = [batches(path, "pyarrow", **part)[0] for part in parts]
    all_skipped = [batches(path, **part)[1]["skipped_pages"] for part in parts]
    fewer = equal = 0
    for seed in range(files):
        path.write_bytes(raw)
        damage(path, seed)
        number = seed % len(parts)
        ours, decoder = batches(path, **parts[number])
        assert_equal(ours, right[number])
        fewer += decoder["skipped_pages"] < all_skipped[number]
        equal += decoder["skipped_pages"] == all_skipped[number]
    assert fewer > files / 4
    assert equal > files / 40


@pytest.mark.parametrize(
    ("at", "size", "said"),
    [(4, 100, 100), (4, 0, 0), (3, 5, 0), (-1, 5, 0), (5000, 5, 0), (4, 4997, 0), (4, -1, 0), (1 << 62, 1 << 30, 0)],
)
def test_where_a_footer_says_that_an_offset_index_is(at, size, said):
    chunks = np.zeros((1, kernel.CHUNK_COLUMNS), np.int64)
    chunks[0, [kernel.INDEX_AT, kernel.INDEX_BYTES]] = at, size
    kernel._check_chunks(np.zeros((1, 3), np.int64), chunks, 0, 5000, np.zeros(5, np.int64))
    assert chunks[0, kernel.INDEX_BYTES] == said


def table_of(*pages: tuple[int, int, int]) -> np.ndarray:
    """Pages of (kind, values, rows), each of 10 bytes with a header of 2."""
    made = np.zeros((len(pages), headers.COLUMNS), np.int64)
    for number, page in enumerate(pages):
        made[number, [headers.KIND, headers.VALUES, headers.ROWS]] = page
        made[number, [headers.AT, headers.STORED]] = 12 * number + 2, 10
    return made


DATA, DICTIONARY, V2 = headers.DATA, headers.DICTIONARY, headers.DATA_V2


@pytest.mark.parametrize(
    ("pages", "repeated", "first"),
    [
        ([(DATA, 3, -1), (DATA, 2, -1)], False, [0, 3, 5]),
        ([(DATA, 3, -1), (DATA, 2, -1)], True, None),
        ([(DICTIONARY, 9, -1), (V2, 30, 4), (V2, 7, 1)], True, [0, 0, 4, 5]),
        ([(V2, 30, 4), (DATA, 7, -1)], True, None),
        ([(DATA, 3, -1), (DATA, 3, -1)], False, None),
        ([(DATA, 3, -1), (DATA, 1, -1)], False, None),
        ([(DATA, 5, -1), (DATA, 0, -1)], False, [0, 5, 5]),
        ([(V2, 8, 5), (V2, 8, 0)], True, None),  # the last row goes on
        ([(V2, 4, 5)], True, None),
        ([(V2, 5, 6), (V2, 5, -1)], True, None),
        ([(V2, 5, (1 << 63) - 1), (V2, 5, (1 << 63) - 1), (V2, 5, 7)], True, None),
        ([(DICTIONARY, 9, -1)], False, None),
        ([], False, None),
    ],
)
def test_rows_that_headers_say(pages, repeated, first):
    found = page_rows.said_by_headers(table_of(*pages), 5, repeated=repeated)
    assert (found is None) if first is None else found.tolist() == first


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        ([0, 3, 4], [0, 0, 3, 4, 5]),
        ([0, 3, 3], None),  # values of no row
        ([0, 4, 3], None),
        ([1, 3, 4], None),
        ([-1, 3, 4], None),
        ([0, 3, 6], None),
        ([0, 3, 1 << 62], None),
    ],
)
def test_rows_that_an_offset_index_says(rows, first):
    table = table_of((DICTIONARY, 9, -1), (DATA, 8, -1), (DATA, 8, -1), (DATA, 8, -1))
    found = np.array([[1012, 12, rows[0]], [1024, 12, rows[1]], [1036, 12, rows[2]]])
    said = page_rows.said_by_index(table, 5, found, 1000)
    assert (said is None) if first is None else said.tolist() == first
    assert page_rows.said_by_index(table, 5, found, 1001) is None


@pytest.mark.parametrize(
    ("wanted", "needed"),
    [
        (range(3), [True, True, False, False]),
        (range(3, 5), [True, False, True, False]),
        (range(5, 5), [False, False, False, False]),
        (range(2, 9), [True, True, True, True]),
        (np.array([0, 8]), [True, True, False, True]),
        (np.array([4]), [True, False, True, False]),
        (np.empty(0, np.int64), [False, False, False, False]),
    ],
)
def test_pages_with_wanted_rows(wanted, needed):
    assert page_rows.with_rows(np.array([0, 0, 3, 5, 9]), wanted).tolist() == needed


@pytest.mark.parametrize(
    ("levels", "begins"),
    [
        (bytes([8, 0]), True),
        (bytes([8, 1]), False),
        (bytes([3, 0b1110]), True),
        (bytes([3, 0b1111]), False),
        (bytes([0x80, 1, 0]), True),
        (bytes([0x80, 1, 1]), False),
        (bytes([8]), False),
        (b"", False),
        (b"\xff" * 11, False),
    ],
)
def test_whether_a_page_begins_with_a_row(levels, begins):
    pages = table_of((V2, 4, 4))
    pages[0, [headers.AT, headers.STORED, headers.REPETITION]] = 0, len(levels), len(levels)
    assert locations.begin_with_rows(np.frombuffer(levels + bytes(4), np.uint8), pages) == begins
