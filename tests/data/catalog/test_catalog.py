"""A catalog says of files what their footers say: read here, shared by processes, from a file, brought up to date."""

import ctypes
import gc
import io
import logging
import os
import sys
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import data_kit
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist
from hypothesis import example, given
from hypothesis import strategies as st
from worlds import shared_world

from fsdata.catalog import catalog as catalogs
from fsdata.catalog import footers
from fsdata.catalog.catalog import EMPTY, Catalog, open_catalog, updated
from fsdata.catalog.footers import Counter, check_footer, parse_footer
from fsdata.catalog.listing.file_list import FileRef
from fsdata.catalog.listing.find_files import discover
from fsdata.catalog.retry import Retrying
from fsdata.decode.readers import open_files

LIST = pa.list_(pa.int64())


class Allocated(ctypes.Structure):
    """What glibc's mallinfo2 says, in bytes: 4 of what has pages of its own, 7 of the rest."""

    _fields_ = (("numbers", ctypes.c_size_t * 10),)


def write(path: Path, rows: range, *, wide: bool = False, **options: object) -> None:
    columns = {"row": pa.array(list(rows), pa.int64()), "item": pa.array([[row, row + 1] for row in rows], LIST)}
    if wide:
        columns["more"] = pa.array([float(row) for row in rows])
    data_kit.write(path, columns, group=3, **options)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """30 files in 6 days, of two schemas; one has no rows."""
    for number in range(30):
        name = f"day={number % 6}/part-{number:02}.parquet"
        size = 0 if number == 7 else 4 + number % 3
        write(tmp_path / "lake" / name, range(100 * number, 100 * number + size), wide=number % 5 == 0)
    return tmp_path / "lake"


def opened(folder: Path) -> Catalog:
    catalog, faults = open_catalog(discover([str(folder)], None), threads=2, retry=Retrying(), label="source 0")
    assert faults == []
    return catalog


def said(catalog: Catalog) -> list[tuple]:
    """Everything, file by file."""
    return [
        (
            catalog.files[number].path,
            int(catalog.size[number]),
            catalog.digest(number),
            catalog.schema(number),
            catalog.rows[catalog.first[number] : catalog.first[number + 1]].tolist(),
        )
        for number in range(len(catalog))
    ]


def by_pyarrow(path: str) -> tuple:
    """What `said` says of a file."""
    raw, metadata = Path(path).read_bytes(), pq.read_metadata(path)
    footer = raw[-int.from_bytes(raw[-8:-4], "little") - 8 :]
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    return path, len(raw), blake2b(footer, digest_size=16).hexdigest(), pq.read_schema(path).remove_metadata(), rows


def test_it_says_what_footers_say(lake: Path) -> None:
    files = discover([str(lake)], None)
    with (
        mock.patch.object(catalogs, "check_footer", wraps=catalogs.check_footer) as checked,
        mock.patch.object(catalogs, "parse_footer", wraps=catalogs.parse_footer) as parsed,
    ):
        catalog, _ = open_catalog(files, threads=1, retry=Retrying(), label="source 0")
    assert checked.call_count == len(files)
    assert parsed.call_count == 2  # the first footer of each schema
    assert said(catalog) == [by_pyarrow(file.path) for file in files]
    assert len(catalog.schemas) == 2
    assert list(catalog.files.names()) == list(files.names())


@pytest.mark.parametrize("shared_from", [1, 1000], ids=["shared", "alone"])
def test_files_without_a_footer_are_named(lake: Path, shared_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "SHARED_FROM", shared_from)
    bad = ["day=0/part-00.parquet", "day=3/part-15.parquet", "day=5/part-29.parquet"]
    for name in bad:
        (lake / name).write_bytes(b"PAR1 cut short")
    catalog, faults = open_catalog(discover([str(lake)], None), threads=2, retry=Retrying(), label="source 0")
    assert [name for name, _ in faults] == bad
    assert all("truncated" in str(error) for _, error in faults)
    assert len(catalog) == 27
    assert all(os.path.getsize(path) == size for path, size, *_ in said(catalog))


def open_on_one_host(rank: int, world_size: int, lake: Path) -> list[tuple[int, list]]:
    """Footers read and what the catalog says, for all ranks at once; then the same for rank 0 after a change."""

    def once() -> tuple[Catalog, tuple[int, list]]:
        with mock.patch.object(catalogs, "raw_footer", wraps=catalogs.raw_footer) as footer:
            found = opened(lake)
        held = [found.size, found.digests, found.rows, found.first]
        return found, (footer.call_count, [each.tolist() for each in held] + [len(found.schemas)])

    with mock.patch.object(catalogs, "SHARED_FROM", 1):
        held, first = once()
        dist.barrier()
        answers = [first]
        if rank == 0:
            write(lake / "day=0/part-00.parquet", range(9))
            answers.append(once()[1])
        dist.barrier()
        del held
    return answers


def test_processes_of_a_host_read_the_footers_once(lake: Path) -> None:
    (first, late), (other,) = shared_world(2).run(open_on_one_host, lake)
    assert sorted(count for count, _ in (first, other)) == [0, 30]
    assert first[1] == other[1]
    assert late[0] == 30  # another listing: not the catalog of the others
    assert late[1] != first[1]


@given(
    st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["write", "wide", "remove", "break", "touch"])), max_size=12)
)
def test_an_update_is_what_a_new_catalog_says(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, str]]
) -> None:
    """Files of the same number of rows have the same size here: only their times tell that one was written again."""
    folder, plain = tmp_path_factory.mktemp("lake"), {"use_dictionary": False, "compression": "none"}
    for number in range(8):
        write(folder / f"{number:02}.parquet", range(number, 2 * number + 2), **plain)
        os.utime(folder / f"{number:02}.parquet", ns=(0, 1))
    old = opened(folder)
    for step, (number, change) in enumerate(changes):
        path = folder / f"{number:02}.parquet"
        if change == "remove":
            path.unlink(missing_ok=True)
        elif change == "break":
            path.write_bytes(b"no file of the kind")
        elif change == "touch" and path.exists():
            os.utime(path, ns=(0, 1_000_000_000 * (step + 1)))
        elif change != "touch":
            write(path, range(step + 1, number + step + 3), wide=change == "wide", **plain)
    if not list(folder.iterdir()):
        return
    files = discover([str(folder)], None)
    with mock.patch.object(catalogs, "raw_footer", wraps=catalogs.raw_footer) as footer:
        found = updated(old, files, threads=1, retry=Retrying())
    whole, faults = open_catalog(files, threads=1, retry=Retrying(), label="x")
    assert said(found.catalog) == said(whole)
    assert len(found.catalog.schemas) == len(whole.schemas)  # those of files that are gone are gone
    assert [name for name, _ in found.faults] == [name for name, _ in faults]
    assert np.array_equal(found.catalog.files.versions, whole.files.versions)
    paths, now = {file.path for file in old.files}, {file.path for file in files}
    assert (found.new, found.gone) == (len(now - paths), len(paths - now))
    assert footer.call_count == found.new + found.changed


def test_an_update_of_nothing_is_a_new_catalog(lake: Path) -> None:
    found = updated(EMPTY, discover([str(lake)], None), threads=1, retry=Retrying())
    assert said(found.catalog) == said(opened(lake))
    assert (found.new, found.changed, found.gone) == (30, 0, 0)


def last(files: list[int], sizes: dict[int, int], room: int, least: int = 0, most: int = 99) -> list[int]:
    """The last of `files`, as many as have room together."""
    fitting = sum(size <= room for size in accumulate(sizes[each] for each in reversed(files)))
    return files[max(len(files) - max(least, min(fitting, most)), 0) :]


@given(
    uses=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40),
    keep=st.integers(1, 3), more=st.integers(0, 3), footers=st.integers(0, 4),
)  # fmt: skip
@example(uses=[(n, True) for n in (0, 1, 0, 2, 0, 3, 1)], keep=1, more=3, footers=2)
@example(uses=[(n, False) for n in (0, 1, 0, 2, 0)], keep=1, more=0, footers=2)
def test_files_and_footers_that_were_used_last_are_kept(
    tmp_path_factory: pytest.TempPathFactory, uses: list[tuple[int, bool]], keep: int, more: int, footers: int
) -> None:
    """Against plain lists. `keep` idle files stay open, and `more` where their footers have room; footers that have
    room stay parsed."""
    folder = tmp_path_factory.mktemp("lake")
    for number in range(5):
        write(folder / f"{number}.parquet", range(number % 3 + 1))
    catalog = opened(folder)
    known = [open_files.ExpectedFile(catalog.files[n], int(catalog.size[n]), catalog.digest(n)) for n in range(5)]
    sizes: dict[int, int] = {}
    for number in range(5):
        handle = open_files.OpenFiles(keep=1).open(known[number])
        sizes[number] = handle.footer_bytes
        handle.close()
    room = footers * max(sizes.values())
    idle: list[int] = []
    parsed_before: list[int] = []
    times_opened = times_parsed = 0
    pool = open_files.OpenFiles(keep=keep, more=more)
    with (
        mock.patch.object(open_files, "FOOTER_BYTES", room),
        mock.patch.object(open_files, "open_file", wraps=open_files.open_file) as open_file,
        mock.patch.object(open_files, "parse_footer", wraps=open_files.parse_footer) as parsed,
    ):
        for number, given_back in uses:
            handle = pool.take(known[number])
            assert handle.parquet.metadata.num_rows == number % 3 + 1
            if number not in idle:
                times_opened += 1
                times_parsed += number not in parsed_before
                parsed_before = last([*(each for each in parsed_before if each != number), number], sizes, room)
            idle = [each for each in idle if each != number]
            if given_back:
                pool.give(handle)
                idle = last([*idle, number], sizes, room, keep, keep + more)
            else:
                handle.close()
            assert (open_file.call_count, parsed.call_count) == (times_opened, times_parsed)
    pool.close()


@pytest.mark.parametrize(("columns", "groups"), [(1, 1), (22, 2), (4, 50)])
def test_parsed_footers_take_no_more_than_is_counted(columns: int, groups: int) -> None:
    """Else the cache grows over its bound."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        pytest.skip("needs glibc 2.33")
    mallinfo.restype = Allocated
    out, rows = pa.BufferOutputStream(), pa.array([[1]] * groups, LIST)
    pq.write_table(pa.table({f"column {n}": rows for n in range(columns)}), out, row_group_size=1)
    raw = out.getvalue().to_pybytes()
    footer, file = raw[-int.from_bytes(raw[-8:-4], "little") - 8 :], FileRef("a.parquet", "a.parquet", None)
    # and what is made once for all
    metadata, schema, chunks = parse_footer(check_footer(footer, len(raw), file), file, {})
    counted = (
        20 * open_files.OpenParquet(file, 0, SimpleNamespace(metadata=metadata), None, schema, chunks).footer_bytes
    )
    gc.collect()
    before = mallinfo()
    kept = [parse_footer(check_footer(footer, len(raw), file), file, {}) for _ in range(20)]
    after = mallinfo()
    taken = sum(after.numbers[at] - before.numbers[at] for at in (4, 7))
    assert len(kept) == 20
    assert 0.5 * counted < taken < 1.1 * counted


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_takes_long_to_open_is_shown(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """By a counter on a terminal, elsewhere by a line in the log."""

    def advance(shown: bool = True, fails: bool = False) -> str:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        with Counter("source 0, its footers", 2_000, shown=shown) as counter:
            for _ in range(10):
                counter.advance(200)
            if fails:
                raise OSError("gone")
        return terminal.getvalue()

    assert advance() == ""
    monkeypatch.setattr(footers, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(footers, "_REDRAWN_AFTER_S", float("inf"))
    assert advance(shown=False) == ""
    assert advance() == "\rsource 0, its footers: 200 of 2,000\x1b[K\r\x1b[K", "ten at once are drawn once, and erased"
    monkeypatch.setattr(footers, "_REDRAWN_AFTER_S", 0.0)
    assert "source 0, its footers: 2,000 of 2,000" in advance()
    drawn: list[str] = []
    monkeypatch.setattr(Terminal, "write", lambda _, text: drawn.append(text))
    with pytest.raises(OSError, match="gone"):
        advance(fails=True)
    assert drawn[-1] == "\r\x1b[K"
    monkeypatch.setattr(Terminal, "isatty", lambda _: False)
    with caplog.at_level(logging.INFO, "fsdata"):
        advance()
    assert [each.getMessage() for each in caplog.records] == ["source 0, its footers: 200 of 2000 so far"]
