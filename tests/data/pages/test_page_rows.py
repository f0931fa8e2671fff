"""Pages of lists without a needed row are not unpacked, and the batches are those that pyarrow's decoding makes.

What is skipped is counted by a reader of its own (`pages_of`), so that no test passes because all pages were read.
"""

import functools
import random
from pathlib import Path
from typing import Any

import compact_thrift as thrift
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_kit import assert_same
from footers import change, footer_of, with_footer
from random_files import batches

from fsdata import CorruptFileError

ROWS, GROUP = 1200, 600
LEAVES = ("at", "user", "price", "items", "costs", "kinds")
SCALARS = LEAVES[:3]  # pyarrow decodes them
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


@functools.cache
def table() -> pa.Table:
    """`at` is 0, 3, 6, ...; lists are short, but in `kinds`."""
    rng = np.random.default_rng(5)

    def of_lists(least: int, most: int, kind: pa.DataType, mask: pa.Array | None = None) -> pa.Array:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(least, most, ROWS))])
        elements = pa.array(rng.integers(0, 40, int(offsets[-1])), pa.int64()).cast(kind)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements, mask=mask)

    items = of_lists(0, 9, pa.int64())
    elements = pa.array(rng.normal(size=len(items.values)), pa.float32())
    return pa.table(
        {
            "at": pa.array(3 * np.arange(ROWS)),
            "user": pa.array([None if n % 7 == 2 else n * n for n in range(ROWS)], pa.int32()),
            "price": pa.array(rng.normal(size=ROWS), pa.float64()),
            "items": items,
            "costs": pa.ListArray.from_arrays(items.offsets, elements),
            "kinds": of_lists(35, 60, pa.int32(), pa.array(np.arange(ROWS) % 11 == 4)),
        }
    )


def write(
    path: Path, made: pa.Table | None = None, *, version: str = "1.0", index: bool = True, **options: Any
) -> Path:
    shape = {"data_page_size": 300, "write_batch_size": 8, "row_group_size": GROUP, "write_page_checksum": True}
    options = {**shape, "use_dictionary": ["user", "kinds.list.element"], "compression": "zstd", **options}
    pq.write_table(made or table(), path, data_page_version=version, write_page_index=index, **options)
    return path


def read(path: Path, **source: Any) -> dict[str, Any]:
    """What the loader says of its decoder, after its batches were compared with those of pyarrow."""
    ours, decoder = batches(path, "pages", source=source)
    assert_same(ours, batches(path, "pyarrow", source=source)[0])
    return decoder


def pages_of(path: Path) -> dict[tuple[int, str], list[tuple[int, int]]]:
    """(row group, leaf) -> [first row, first row after it) of its data pages, from the offset index."""
    raw, found = path.read_bytes(), {}
    for group, row_group in enumerate(footer_of(raw)[4].values):
        for leaf, column in zip(LEAVES, row_group[1].values, strict=True):
            index = thrift.read_struct(raw, column[4])[0]
            first = [location[3] for location in index[1].values]
            found[group, leaf] = list(zip(first, [*first[1:], row_group[3]], strict=True))
    return found


def without_row(path: Path, rows: np.ndarray) -> int:
    """How many data pages of lists have none of `rows`, numbers in the file; of row groups that have some of them."""
    count = 0
    for (group, leaf), pages in pages_of(path).items():
        here = rows[(rows >= group * GROUP) & (rows < (group + 1) * GROUP)] - group * GROUP
        if len(here) and leaf not in SCALARS:
            count += sum(not ((here >= begin) & (here < end)).any() for begin, end in pages)
    return count


def kept(part: dict[str, Any]) -> np.ndarray:
    """The rows, in the file, that a source reads."""
    some = pl.from_arrow(table()).with_row_index("row").slice(part.get("skip", 0), part.get("limit", ROWS))
    return some.filter(part.get("filter", True))["row"].to_numpy()


@pytest.mark.parametrize(
    ("version", "index", "part"),
    [
        *(("1.0" if n % 2 else "2.0", bool(n % 2), part) for n, part in enumerate(PARTS)),
        *(pytest.param("2.0" if n % 2 else "1.0", bool(n % 2), part, marks=pytest.mark.long)
          for n, part in enumerate(PARTS)),
    ],
)  # fmt: skip
def test_pages_without_a_needed_row_are_skipped(tmp_path, version, index, part):
    path = write(tmp_path / "a.parquet", version=version, index=index)
    same_pages = write(tmp_path / "with index.parquet", version=version)
    decoder, rows = read(path, **PARTS[part]), kept(PARTS[part])
    known = version == "2.0" or index  # else nothing says which rows a page of lists holds
    expected = without_row(same_pages, rows) if known else 0
    assert decoder["skipped_pages"] == expected
    assert expected > 0 or len(rows) == 0 or not known
    assert decoder["pyarrow"] == {}


def test_a_skipped_page_may_be_damaged_and_a_needed_one_may_not(tmp_path):
    path = write(tmp_path / "a.parquet")
    raw = bytearray(path.read_bytes())
    index = thrift.read_struct(bytes(raw), footer_of(bytes(raw))[4].values[0][1].values[3][4])[0]
    hurt = index[1].values[3]
    raw[hurt[1] + hurt[2] - 1] ^= 1
    path.write_bytes(raw)
    begin, end = pages_of(path)[0, "items"][3]
    part = {"filter": ~AT.is_between(3 * begin, 3 * (end - 1))}
    assert sum(len(batch.dense) for batch in batches(path, "pages", source=part)[0]) == ROWS - (end - begin)
    for part in ({"filter": AT.is_in([3 * begin])}, {"skip": end - 1, "limit": 1}, {}):
        with pytest.raises(CorruptFileError, match="column 'items', page 3"):
            raise batches(path, "pages", source=part)[0]
    for part in ({"filter": AT == 1500}, {"skip": 500}):  # where row groups are left out, any part of one finds damage
        assert read(path, on_error="skip", **part)["skipped_pages"] == 0


def test_values_that_pyarrow_must_decode_are_found_after_the_filter(tmp_path):
    costs, at = table()["costs"].combine_chunks(), LEAVES.index("costs")
    ends = costs.offsets.to_numpy()[300::300] - 1
    values = costs.values.to_numpy(zero_copy_only=False).copy()
    values[ends] = np.nan
    made = table().set_column(at, "costs", pa.ListArray.from_arrays(costs.offsets, pa.array(values)))
    path = write(tmp_path / "a.parquet", made, use_dictionary=False)
    stops = {"nulls": {"costs": "error"}}
    assert read(path, filter=AT.is_between(900, 950), **stops)["pyarrow"] == {
        "costs": {"numbers that are not finite": 1}
    }
    assert read(path, filter=AT < 800, **stops)["pyarrow"] == {}  # these are not in a page that is read
    assert read(path, filter=AT.is_between(800, 900))["pyarrow"] == {}


def lie(path: Path, edit: Any) -> None:
    """Let `edit` change the offset index of `items`; the new one stands where nothing else does."""
    raw = path.read_bytes()
    footer = footer_of(raw)
    column = footer[4].values[0][1].values[3]
    index = thrift.read_struct(raw, column[4])[0]
    made = edit(index)
    new = made if isinstance(made, bytes) else thrift.write_struct(index)
    at = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    column[4], column[5] = at, len(new)
    path.write_bytes(with_footer(raw[:at] + new + raw[at:], footer))


def one_more(page: int, number: int) -> Any:
    def edit(index: thrift.Struct) -> None:
        index[1].values[page][number] += 1

    return edit


LIES = {
    "row of the first page": one_more(0, 3),
    "row of a page before": one_more(8, 3),
    "row of a page after": one_more(13, 3),
    "place of a page": one_more(3, 1),
    "size of a page": one_more(3, 2),
    "a page less": lambda index: index[1].values.pop(),
    "a page twice": lambda index: index[1].values.insert(4, index[1].values[4]),
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
    all_skipped = batches(path, "pages", source=part)[1]["skipped_pages"]
    lie(path, LIES[what])
    assert read(path, **part)["skipped_pages"] == all_skipped - (len(pages) - 5)


@pytest.mark.parametrize(("begin", "size"), [(-1, 5), (3, 5), (5000, 5), (1 << 62, 1 << 30), (None, 1 << 30)])
def test_an_offset_index_that_lies_outside_the_file_is_not_used(tmp_path, begin, size):
    path = write(tmp_path / "a.parquet")

    def elsewhere(footer: thrift.Struct) -> None:
        for column in (one for group in footer[4].values for one in group[1].values):
            column[4], column[5] = column[4] if begin is None else begin, size

    change(path, elsewhere)
    assert read(write(tmp_path / "right.parquet"), limit=30)["skipped_pages"] > 0
    assert read(path, limit=30)["skipped_pages"] == 0


def test_rows_that_headers_of_version_2_say_wrongly(tmp_path):
    path = write(tmp_path / "a.parquet", version="2.0", index=False, compression="none")
    part = {"filter": AT.is_between(600, 900)}
    skipped = batches(path, "pages", source=part)[1]["skipped_pages"]
    raw = path.read_bytes()
    at = footer_of(raw)[4].values[0][1].values[3][3][9]
    made = bytearray(raw)
    for number in range(50):  # in all there are as many rows as before
        header, body = thrift.read_struct(raw, at)
        header[8][3] += 1 if number % 2 == 0 else -1
        new = thrift.write_struct(header)
        assert len(new) == body - at
        made[at:body] = new
        at = body + header[3]
    path.write_bytes(made)
    assert 0 < read(path, **part)["skipped_pages"] < skipped


@pytest.mark.parametrize("files", [24, pytest.param(400, marks=pytest.mark.long)])
def test_damaged_offset_indexes_change_no_row(tmp_path, files):
    path = write(tmp_path / "a.parquet")
    raw = path.read_bytes()
    columns = [column for group in footer_of(raw)[4].values for column in group[1].values]
    parts = [PARTS["some of a sorted column"], PARTS["over two row groups"], PARTS["here and there"]]
    right = [batches(path, "pyarrow", source=part)[0] for part in parts]
    skipped = [batches(path, "pages", source=part)[1]["skipped_pages"] for part in parts]
    fewer = 0
    for seed in range(files):
        rng, damaged = random.Random(seed), bytearray(raw)
        for _ in range(rng.choice([1, 1, 2, 5, 40])):
            column = rng.choice(columns)
            damaged[column[4] + rng.randrange(column[5])] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        ours, decoder = batches(path, "pages", source=parts[seed % len(parts)])
        assert_same(ours, right[seed % len(parts)])
        fewer += decoder["skipped_pages"] < skipped[seed % len(parts)]
    assert files / 4 < fewer < files
