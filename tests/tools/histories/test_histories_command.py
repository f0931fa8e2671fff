"""The command `freescale histories`: what it prints, what it refuses, and what an early end leaves."""

import datetime
import json
import pathlib
import shutil

import data_kit
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from event_logs import SCHEMA, build, reference, tables, write_events, write_log

from freescale_tools.write.histories import build as making
from freescale_tools.write.histories import table as stored
from freescale_tools.write.histories.table import replacing
from fsdata import AsOf, FreeScaleDataLoader, ParquetSource, Schema, Sequence, text_key

COMMAND = "histories"
OPTIONS = ("--by", "user", "--time", "ts")
ROWS = [(n, n % 3, 50 - n // 2, 0.5, "w") for n in range(20)]


@pytest.fixture
def log(tmp_path):
    write_log(tmp_path / "log", [ROWS[:9], ROWS[9:]])
    return tmp_path / "log"


@pytest.fixture
def out(tmp_path, log):
    """A table of the log."""
    build([log], tmp_path / "out", buckets=2)
    return tmp_path / "out"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_table_is_built_and_described(call, log, tmp_path):
    done = call(log, *OPTIONS, "--out", tmp_path / "new" / "out", "--buckets", 3)
    assert done.exit_code == 0, done.output
    assert [table.to_pylist() for table in tables(tmp_path / "new" / "out")] == reference([ROWS], 3)
    for text in ("20", "3", "mean 6.667, p50 7, p99 7, max 7", "41 to 50", "3 file(s)"):
        assert text in done.stdout
    assert "warning" not in done.stdout
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]
    (tmp_path / "empty").mkdir()
    assert call(log, *OPTIONS, "--out", tmp_path / "empty").exit_code == 0


def test_json_has_everything_and_events_of_the_future_are_a_warning(call, log, out):
    soon = int(datetime.datetime.now().timestamp()) + 86_400
    write_events(log / "events-02.parquet", [(0, 1, soon, 0.0, "")])
    write_events(log / "events-03.parquet", [(0, 1, soon - 10**6 - n, 0.0, "") for n in range(80)])
    done = call(log, *OPTIONS, "--out", out, "--update", "--json")
    document = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (document["kind"], document["version"], document["findings"]) == ("histories", 1, [])
    assert (document["events"], document["new_events"], document["users"], document["future"]) == (121, 101, 3, 1)
    assert (document["by"], document["time_column"], document["fields"]) == ("user", "ts", ["item", "price", "word"])
    shown = call(log / "events-03.parquet", *OPTIONS, "--out", out, "--update").stdout.replace("\n", " ")
    assert "warning: 1 events (0.50%) are later than now" in shown


def test_files_are_in_the_order_in_which_they_are_given(call, tmp_path):
    tie = [[(n, 1, 5, 0.0, "")] for n in range(3)]
    zero, one, two = write_log(tmp_path / "log", tie)
    for given, order in (([tmp_path / "log"], [0, 1, 2]), ([two, zero, one], [2, 0, 1])):
        done = call(*given, *OPTIONS, "--out", tmp_path / "out")
        assert done.exit_code == 0, done.output
        assert tables(tmp_path / "out")[0]["item"].to_pylist() == [order]
        shutil.rmtree(tmp_path / "out")


def other_schema(**kinds):
    return pa.schema([pa.field(field.name, kinds.get(field.name, field.type)) for field in SCHEMA])


ROW = (1, 2, 3, 0.5, "w")
MORE = SCHEMA.append(pa.field("more", pa.int8()))
LISTS = other_schema(item=pa.list_(pa.int64()))


@pytest.mark.parametrize(
    ("options", "schema", "row", "messages"),
    [
        (("--by", "uid"), SCHEMA, ROW, ("events-00.parquet has no column uid; it has item, user",)),
        (("--fields", "item,cost"), SCHEMA, ROW, ("has no column cost", "every event file has")),
        (("--by", "price"), SCHEMA, ROW, ("--by price: it is float in", "keys are integers or texts. Cast the column")),
        (("--time", "word"), SCHEMA, ROW, ("--time word: it is string", "Cast the column")),
        (("--by", "ts"), SCHEMA, ROW, ("--by and --time are both ts",)),
        (("--fields", "user"), SCHEMA, ROW, ("--fields user", "by --by or --time")),
        (("--fields", "item,item"), SCHEMA, ROW, ("a column is named twice",)),
        (("--buckets", "0"), SCHEMA, ROW, ("--buckets must be 1 to 10,000, got 0",)),
        (
            (),
            other_schema(item=pa.int64()),
            ROW,
            ("column item is int64 in", "01.parquet and int32 in", "Write one of"),
        ),
        ((), MORE, (*ROW, 1), ("events-01.parquet has a column more that", "--fields")),
        ((), SCHEMA.remove(4), ROW[:4], ("events-01.parquet has no column word",)),
        ((), SCHEMA, (1, 2, None, 0.5, "w"), ("--time ts: 1 nulls in 1 of 2 files", "remove these")),
        (
            ("log/events-01.parquet",),
            LISTS,
            ([1], *ROW[1:]),
            ("column item is list<element: int64> in", "one value per"),
        ),
    ],
)
def test_bad_events_are_refused(call, tmp_path, monkeypatch, options, schema, row, messages):
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log", [ROWS])
    write_events(tmp_path / "log" / "events-01.parquet", [row], schema)
    done = call(*(() if schema is LISTS else ("log",)), *OPTIONS, *options, "--out", "out")
    assert done.exit_code == 2, done.output
    for message in messages:
        assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_keys_of_text_are_those_of_the_loader(call, tmp_path):
    """The same table as of numbers that `text_key` made, and requests with text find their histories in it."""
    texts = [(n, f"user é{n % 3}", n, 0.5, "w") for n in range(8)]
    schema = other_schema(user=pa.string())
    write_events(tmp_path / "log" / "a.parquet", texts[:5], schema, row_group_size=2)
    write_events(tmp_path / "log" / "b.parquet", texts[5:], other_schema(user=pa.dictionary(pa.int8(), pa.string())))
    done = call(tmp_path / "log", *OPTIONS, "--out", tmp_path / "table")
    assert done.exit_code == 0, done.output
    table = pl.read_parquet(tmp_path / "table")
    assert table["user"].is_sorted()
    pl.DataFrame({"user": ["user é1", "user é0", None], "now": [4, 9, 9]}).write_parquet(tmp_path / "rows.parquet")
    as_of = AsOf(ParquetSource(tmp_path / "table"), on="user", at="now", time="ts", fields=("item",))
    source = ParquetSource(tmp_path / "rows.parquet", columns={"user": text_key("user")}, join=as_of)
    with FreeScaleDataLoader(source, Schema(sequences=(Sequence("uih", ("item",)),)), batch_size=3) as loader:
        (batch,) = loader
    assert batch.features["item"].values().tolist() == [1, 0, 3, 6]
    assert batch.features["item"].lengths().tolist() == [1, 3, 0]


@pytest.mark.parametrize("statistics", [True, False])
def test_nulls_are_counted_with_and_without_statistics(call, tmp_path, statistics):
    rows = [(1, None if n % 4 else 5, n, 0.0, "") for n in range(10)]
    for name, some in (("a", ROWS), ("b", rows), ("c", rows[:2])):
        write_events(tmp_path / f"{name}.parquet", some, write_statistics=statistics, row_group_size=4)
    done = call(tmp_path, *OPTIONS, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert f"--by user: 8 nulls in 2 of 3 files, first in {tmp_path}/b.parquet" in done.stderr


def test_a_footer_that_hides_nulls_is_found_out(call, tmp_path, monkeypatch):
    write_log(tmp_path / "log", [[*ROWS, (1, None, 3, 0.5, "w")]])
    monkeypatch.setattr(making, "refuse_nulls", lambda *_: None)
    done = call(tmp_path / "log", *OPTIONS, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "column user has nulls, and the footer says that it has none" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_damaged_page_is_named_and_leaves_the_table(call, tmp_path, out):
    path = write_events(tmp_path / "more" / "a.parquet", ROWS, write_page_checksum=True, compression=None)
    before, damaged = contents(out), bytearray(path.read_bytes())
    place = damaged.index(b"w" + bytes(3)) if b"w" + bytes(3) in damaged else 60
    damaged[place] ^= 0xFF
    path.write_bytes(damaged)
    done = call(tmp_path / "more", *OPTIONS, "--out", out, "--update")
    assert done.exit_code == 1, done.output
    assert "a.parquet, row group 0: cannot be decoded" in done.stderr
    assert "is as before" in done.stderr
    assert contents(out) == before


@pytest.mark.parametrize(
    ("given", "to", "options", "message"),
    [
        ("log", "out", (), "holds a history table, which would be lost: add the events to it by --update"),
        ("log", "nothing", ("--update",), "Leave out --update to build one"),
        ("log", "mine", (), "holds notes.txt"),
        ("log", "mine", ("--update",), "holds notes.txt"),
        ("log", "mine/notes.txt", (), "is a file: give a folder"),
        ("log", "log", (), "a table is no event log"),
        ("nowhere", "new", (), "no such file or folder"),
        ("cut", "new", (), "1 of the event files cannot be read, first events-09.parquet"),
    ],
)
def test_folders_that_do_not_fit_are_refused(call, log, tmp_path, out, monkeypatch, given, to, options, message):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(log, tmp_path / "cut")
    (tmp_path / "cut" / "events-09.parquet").write_bytes(b"PAR1 but no more")
    shutil.copytree(out, tmp_path / "mine")
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    before = [contents(tmp_path / name) for name in ("out", "mine", "log")]
    done = call(given, *OPTIONS, "--out", to, *options)
    assert (done.exit_code, message in done.stderr) == (2, True), done.output
    assert [contents(tmp_path / name) for name in ("out", "mine", "log")] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "log", "mine", "out"]


@pytest.mark.parametrize(
    ("options", "schema", "row", "message"),
    [
        (("--by", "item"), SCHEMA, ROW, "was built with --by user. Give the same"),
        (("--time", "item"), SCHEMA, ROW, "was built with --time ts. Give the same"),
        (("--buckets", "3"), SCHEMA, ROW, "--buckets 3: the table in"),
        (("--fields", "item"), SCHEMA, ROW, "has a field price: --fields does not name it"),
        ((), SCHEMA.remove(4), ROW[:4], "has a field word: the events have no such column"),
        ((), MORE, (*ROW, 1), "has no field more: give --fields item,price,word"),
        ((), other_schema(item=pa.int64()), ROW, "column item is int64 in the events and int32 in"),
    ],
)
def test_updates_that_do_not_fit_are_refused(call, tmp_path, out, options, schema, row, message):
    before = contents(out)
    path = write_events(tmp_path / "more.parquet", [row], schema)
    done = call(path, *OPTIONS, *options, "--out", out, "--update")
    assert (done.exit_code, message in done.stderr) == (2, True), done.output
    assert contents(out) == before


def test_only_whole_tables_of_this_command_are_updated(call, log, tmp_path, out):
    build([log], tmp_path / "one")
    build([log], tmp_path / "other", buckets=2, fields=("item",))
    name, last = "histories-00000-of-00002.parquet", "histories-00001-of-00002.parquet"
    kept = (out / last).read_bytes()

    def refused():
        done = call(log, *OPTIONS, "--out", out, "--update")
        assert done.exit_code == 2, done.output
        return done.stderr

    (out / last).unlink()
    assert f"is not a whole table: {last} is missing" in refused()
    shutil.copy(tmp_path / "other" / last, out / last)
    assert f"files of different tables, {name} and {last}" in refused()
    (out / last).write_bytes(kept)
    shutil.copy(next((tmp_path / "one").iterdir()), out)
    assert "files of different tables" in refused()
    shutil.rmtree(out)
    data_kit.write(out / name, {"user": [1], "ts": [[1]]})
    assert "was not written by this version of the command" in refused()


@pytest.mark.parametrize(
    ("error", "owner", "where"),
    [
        (pa.ArrowInvalid("too large"), pq.ParquetWriter, "write_table"),
        (KeyboardInterrupt(), pq.ParquetWriter, "write_table"),
        (OSError("disk full"), stored.os, "fsync"),
        (OSError("not allowed"), pathlib.Path, "rename"),
    ],
    ids=["writing", "interrupted", "closing", "taking the place of the old one"],
)
def test_an_early_end_leaves_the_old_table(call, log, tmp_path, out, monkeypatch, error, owner, where):
    before, real = contents(out), getattr(owner, where)

    def fail(self, *rest, **options):
        if where == "rename" and self.name != "new":
            return real(self, *rest)
        raise error

    monkeypatch.setattr(owner, where, fail)
    for folder, option in ((out, ("--update",)), (tmp_path / "new table", ())):
        done = call(log, *OPTIONS, "--out", folder, *option)
        pressed = isinstance(error, KeyboardInterrupt)
        assert done.exit_code == (130 if pressed else 1), done.output
        assert ("nothing half-written is left" if pressed else "no table was made") in done.stderr
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "out"]


def test_what_a_killed_run_left_is_cleared_put_back_or_named(call, log, tmp_path, out):
    work = tmp_path / ".out.work"
    for place in ("new", "parts"):
        (work / place).mkdir(parents=True)
    out.rename(work / "old")  # killed between the two renames
    assert call(log, *OPTIONS, "--out", out, "--update").exit_code == 0
    assert [table.to_pylist() for table in tables(out)] == reference([ROWS, ROWS], 2)
    assert not work.exists()
    (work / "old").mkdir(parents=True)  # killed after the second one
    assert call(log, *OPTIONS, "--out", out, "--update").exit_code == 0
    assert not work.exists()
    for place in ("old", "new"):
        (work / place).mkdir(parents=True)
    before = contents(out)
    done = call(log, *OPTIONS, "--out", out, "--update")
    assert (done.exit_code, "an interrupted run has left the table of before" in done.stderr) == (1, True)
    assert (contents(out), (work / "old").exists()) == (before, True)


def test_two_runs_never_write_the_same_table(call, log, out, monkeypatch):
    before = contents(out)
    with replacing(out) as (new, _):
        done = call(log, *OPTIONS, "--out", out, "--update")
        assert (done.exit_code, "another run is writing" in done.stderr) == (1, True)
        assert contents(out) == before
        assert new.exists()
    assert list(out.iterdir()) == []


def test_a_lock_on_a_folder_that_is_gone_is_no_lock(out, monkeypatch):
    work = out.parent / ".out.work"

    def flock(*_):
        work.rmdir()

    monkeypatch.setattr(stored.fcntl, "flock", flock)
    with pytest.raises(stored.CommandFailed, match="another run is writing"), replacing(out):
        pass
