"""The command `freescale histories`: what it prints, what it refuses, and what an early end leaves."""

import datetime
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import fsspec
import numpy as np
import parquet
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from event_logs import SCHEMA, build, reference, tables, write_events, write_log

from freescale_tools.console.errors import UsageError
from freescale_tools.scan.files import open_files
from freescale_tools.write.histories import build as making
from freescale_tools.write.histories import folder as replacement
from freescale_tools.write.histories.events.checks import checked_layout, refuse_nulls
from freescale_tools.write.histories.folder import replacing
from freescale_tools.write.histories.write import TableWriter

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


def test_json_has_everything(call, log, out):
    done = call(log, *OPTIONS, "--out", out, "--update", "--json")
    document = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (document["kind"], document["version"], document["findings"]) == ("histories", 1, [])
    assert (document["events"], document["new_events"], document["users"]) == (40, 20, 3)
    assert (document["by"], document["time_column"], document["fields"]) == ("user", "ts", ["item", "price", "word"])


def test_events_of_the_future_are_a_warning(call, tmp_path):
    soon = int(datetime.datetime.now().timestamp()) + 86_400
    write_log(tmp_path / "log", [[(0, 1, soon, 0.0, ""), (0, 1, soon - 10**6, 0.0, "")]])
    done = call(tmp_path / "log", *OPTIONS, "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert "warning: 1 events (50.00%) are later than now" in done.stdout.replace("\n", " ")


def test_files_are_in_the_order_in_which_they_are_given(call, tmp_path):
    tie = [[(n, 1, 5, 0.0, "")] for n in range(3)]
    zero, one, two = write_log(tmp_path / "log", tie)
    for given, order in (([tmp_path / "log"], [0, 1, 2]), ([two, zero, one], [2, 0, 1])):
        done = call(*given, *OPTIONS, "--out", tmp_path / "out")
        assert done.exit_code == 0, done.output
        assert tables(tmp_path / "out")[0]["item"].to_pylist() == [order]
        shutil.rmtree(tmp_path / "out")


def test_events_may_be_in_a_store(call, tmp_path):
    store = fsspec.filesystem("memory")
    store.makedirs("/events", exist_ok=True)
    with store.open("/events/a.parquet", "wb") as file:
        pq.write_table(pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in ROWS], SCHEMA), file)
    done = call("memory://events/a.parquet", *OPTIONS, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert [table.to_pylist() for table in tables(tmp_path / "out")] == reference([ROWS])


def other_schema(**kinds):
    return pa.schema([pa.field(field.name, kinds.get(field.name, field.type)) for field in SCHEMA])


def bad_events():
    """(name, options, schema of the second file, its rows, what the message says)."""
    row = (1, 2, 3, 0.5, "w")
    given = ["--by", "user", "--time", "ts"]
    yield "no key", ["--by", "uid", "--time", "ts"], SCHEMA, row, ("events-00.parquet has no column uid", "item, user")
    yield "no time", ["--by", "user", "--time", "at"], SCHEMA, row, ("events-00.parquet has no column at",)
    yield "no field", [*given, "--fields", "item,cost"], SCHEMA, row, ("has no column cost", "every event file has")
    yield "text key", ["--by", "word", "--time", "ts"], SCHEMA, row, ("--by word: it is string in", "hashlib.blake2b")
    yield "float key", ["--by", "price", "--time", "ts"], SCHEMA, row, ("--by price: it is float in", "Cast the column")
    yield "text time", ["--by", "user", "--time", "word"], SCHEMA, row, ("--time word: it is string", "Cast the column")
    yield "key is time", ["--by", "ts", "--time", "ts"], SCHEMA, row, ("--by and --time are both ts",)
    yield "key is field", [*given, "--fields", "user"], SCHEMA, row, ("--fields user", "by --by or --time")
    yield "field twice", [*given, "--fields", "item,item"], SCHEMA, row, ("a column is named twice",)
    yield (
        "type differs",
        given,
        other_schema(item=pa.int64()),
        row,
        ("column item is int64 in", "events-01.parquet and int32 in", "events-00.parquet", "Write one of the files"),
    )
    yield "time differs", given, other_schema(ts=pa.int32()), row, ("column ts is int32 in", "and int64 in")
    more = SCHEMA.append(pa.field("more", pa.int8()))
    yield "more columns", given, more, (*row, 1), ("events-01.parquet has a column more that", "--fields")
    yield "fewer columns", given, SCHEMA.remove(4), row[:4], ("events-01.parquet has no column word",)
    yield "null key", given, SCHEMA, (1, None, 3, 0.5, "w"), ("--by user: 1 nulls in 1 of 2 files, first in", "01.parq")
    yield "null time", given, SCHEMA, (1, 2, None, 0.5, "w"), ("--time ts: 1 nulls in 1 of 2 files", "remove these")
    yield "buckets", [*given, "--buckets", "0"], SCHEMA, row, ("--buckets must be 1 to 10,000, got 0",)


@pytest.mark.parametrize(
    ("options", "schema", "row", "messages"), [case[1:] for case in bad_events()], ids=[c[0] for c in bad_events()]
)
def test_bad_events_are_refused(call, tmp_path, options, schema, row, messages):
    write_log(tmp_path / "log", [ROWS])
    write_events(tmp_path / "log" / "events-01.parquet", [row], schema)
    done = call(tmp_path / "log", *options, "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    for message in messages:
        assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize("statistics", [True, False])
def test_nulls_are_counted_with_and_without_statistics(call, tmp_path, statistics):
    rows = [(1, None if n % 4 else 5, n, 0.0, "") for n in range(10)]
    for name, some in (("a", ROWS), ("b", rows), ("c", rows[:2])):
        write_events(tmp_path / f"{name}.parquet", some, write_statistics=statistics, row_group_size=4)
    done = call(tmp_path, *OPTIONS, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert f"--by user: 8 nulls in 2 of 3 files, first in {tmp_path}/b.parquet" in done.stderr


def test_nulls_are_counted_where_some_row_groups_have_no_statistics(tmp_path):
    rows = [(1, None if n % 4 else 5, n, 0.0, "") for n in range(12)]
    files = open_files([str(write_events(tmp_path / "a.parquet", rows, row_group_size=4))])
    layout = checked_layout(files, by="user", time="ts", fields=())
    (footer,) = files.footers
    silent = np.where(np.arange(3)[:, None] == 1, -1, footer.null_counts)
    files = replace(files, footers=(replace(footer, null_counts=silent),))
    with pytest.raises(UsageError, match="--by user: 9 nulls in 1 of 1 files"):
        refuse_nulls(files, layout)


def test_a_footer_that_hides_nulls_is_found_out(call, tmp_path, monkeypatch):
    write_log(tmp_path / "log", [[*ROWS, (1, None, 3, 0.5, "w")]])
    monkeypatch.setattr(making, "refuse_nulls", lambda *_: None)
    done = call(tmp_path / "log", *OPTIONS, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "column user has nulls, and the footer says that it has none" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_lists_are_refused_but_need_not_be_read(call, tmp_path):
    events = pa.table({"user": [1], "ts": [2], "item": pa.array([3], pa.int32()), "tags": [[1, 2]]})
    pq.write_table(events, tmp_path / "a.parquet")
    done = call(tmp_path, *OPTIONS, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "column tags is list<element: int64> in" in done.stderr
    assert "one value per column" in done.stderr
    assert call(tmp_path / "a.parquet", *OPTIONS, "--out", tmp_path / "out", "--fields", "item").exit_code == 0


def test_files_that_are_missing_or_unreadable_are_refused(call, log, tmp_path):
    done = call(tmp_path / "nowhere", *OPTIONS, "--out", tmp_path / "out")
    assert (done.exit_code, "no such file or folder" in done.stderr) == (2, True)
    (log / "events-09.parquet").write_bytes(b"PAR1 but no more")
    done = call(log, *OPTIONS, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "1 of the event files cannot be read, first events-09.parquet" in done.stderr
    assert not (tmp_path / "out").exists()


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


def test_folders_with_something_in_them_are_refused(call, log, tmp_path, out):
    before = contents(out)
    done = call(log, *OPTIONS, "--out", out)
    assert done.exit_code == 2
    assert "holds a history table, which would be lost: add the events to it by --update" in done.stderr
    assert contents(out) == before
    done = call(log, *OPTIONS, "--out", tmp_path / "nothing", "--update")
    assert (done.exit_code, "Leave out --update to build one" in done.stderr) == (2, True)
    (out / "notes.txt").write_text("mine")
    for option in ((), ("--update",)):
        done = call(log, *OPTIONS, "--out", out, *option)
        assert (done.exit_code, "holds notes.txt" in done.stderr) == (2, True)
    assert contents(out) == before | {"notes.txt": b"mine"}
    done = call(log, *OPTIONS, "--out", out / "notes.txt")
    assert (done.exit_code, "is a file: give a folder" in done.stderr) == (2, True)
    done = call(log, *OPTIONS, "--out", log)
    assert (done.exit_code, "a table is no event log" in done.stderr) == (2, True)
    (tmp_path / "empty").mkdir()
    assert call(log, *OPTIONS, "--out", tmp_path / "empty").exit_code == 0


def bad_updates():
    given = ["--by", "user", "--time", "ts"]
    more = SCHEMA.append(pa.field("more", pa.int8()))
    row = (1, 2, 3, 0.5, "w")
    yield "key", ["--by", "item", "--time", "ts"], SCHEMA, row, "was built with --by user. Give the same"
    yield "time", ["--by", "user", "--time", "item"], SCHEMA, row, "was built with --time ts. Give the same"
    yield "buckets", [*given, "--buckets", "3"], SCHEMA, row, "--buckets 3: the table in"
    yield "a field left out", [*given, "--fields", "item"], SCHEMA, row, "has a field price: --fields does not name it"
    yield "a field missing", given, SCHEMA.remove(4), row[:4], "has a field word: the events have no such column"
    yield "one more field", given, more, (*row, 1), "has no field more: give --fields item,price,word"
    yield "another type", given, other_schema(item=pa.int64()), row, "column item is int64 in the events and int32 in"
    yield "another key type", given, other_schema(user=pa.int32()), row, "column user is int32 in the events and int64"


@pytest.mark.parametrize(
    ("options", "schema", "row", "message"), [case[1:] for case in bad_updates()], ids=[c[0] for c in bad_updates()]
)
def test_updates_that_do_not_fit_are_refused(call, tmp_path, out, options, schema, row, message):
    before = contents(out)
    path = write_events(tmp_path / "more.parquet", [row], schema)
    done = call(path, *options, "--out", out, "--update")
    assert done.exit_code == 2, done.output
    assert message in done.stderr
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
    wide = write_events(tmp_path / "wide.parquet", [ROWS[0]], other_schema(item=pa.int64()))
    build([wide], tmp_path / "of-other-type", buckets=2)
    shutil.copy(tmp_path / "of-other-type" / last, out / last)
    assert f"files of different tables, {name} and {last}" in refused()
    (out / last).write_bytes(kept)
    shutil.copy(next((tmp_path / "one").iterdir()), out)
    assert "files of different tables" in refused()
    shutil.rmtree(out)
    parquet.write(out / name, {"user": [1], "ts": [[1]]})
    assert "was not written by this version of the command" in refused()


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), pa.ArrowInvalid("too large")], ids=repr)
@pytest.mark.parametrize("when", ["writing", "closing"])
def test_an_early_end_leaves_the_old_table(call, log, tmp_path, out, monkeypatch, error, when):
    before = contents(out)

    def fail(*_):
        raise error

    monkeypatch.setattr(TableWriter, "write" if when == "writing" else "_finish", fail)
    for folder, option in ((out, ("--update",)), (tmp_path / "new", ())):
        done = call(log, *OPTIONS, "--out", folder, *option)
        pressed = isinstance(error, KeyboardInterrupt)
        assert done.exit_code == (130 if pressed else 1), done.output
        assert ("nothing half-written is left" if pressed else "no table was made") in done.stderr
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "out"]


def test_the_old_table_comes_back_if_the_new_one_cannot_take_its_place(call, log, tmp_path, out, monkeypatch):
    before, rename = contents(out), type(out).rename

    def fail(path, target):
        if path.name == "new":
            raise OSError("no")
        return rename(path, target)

    monkeypatch.setattr(type(out), "rename", fail)
    assert call(log, *OPTIONS, "--out", out, "--update").exit_code == 1
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "out"]


KILLED = """
import os, pathlib, signal, sys
from freescale_tools.cli import app
rename = pathlib.Path.rename
def end(path, target):
    if path.name == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)
pathlib.Path.rename = end
app(sys.argv[2:])
"""


@pytest.mark.long
@pytest.mark.parametrize("before", ["out", "new"], ids=["before the old one is moved", "between the renames"])
def test_a_killed_run_loses_nothing(call, log, tmp_path, out, before):
    old = contents(out)
    arguments = ["histories", str(log), *OPTIONS, "--out", str(out), "--update"]
    done = subprocess.run([sys.executable, "-c", KILLED, before, *arguments], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert contents(out if before == "out" else tmp_path / ".out.work" / "old") == old
    assert call(*arguments[1:]).exit_code == 0
    assert [table.to_pylist() for table in tables(out)] == reference([ROWS, ROWS], 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "out"]


def test_what_an_interrupted_run_left_is_cleared_or_named(call, log, tmp_path, out):
    work = tmp_path / ".out.work"
    (work / "old").mkdir(parents=True)  # killed after the second rename
    (work / "parts").mkdir()
    assert call(log, *OPTIONS, "--out", out, "--update").exit_code == 0
    assert not work.exists()
    (work / "old").mkdir(parents=True)
    (work / "new").mkdir()
    before = contents(out)
    done = call(log, *OPTIONS, "--out", out, "--update")
    assert (done.exit_code, "an interrupted run has left the table of before" in done.stderr) == (1, True)
    assert (contents(out), (work / "old").exists()) == (before, True)


def test_two_runs_never_write_the_same_table(call, log, out, monkeypatch):
    before = contents(out)
    with replacing(out) as place:
        done = call(log, *OPTIONS, "--out", out, "--update")
        assert (done.exit_code, "another run is writing" in done.stderr) == (1, True)
        assert contents(out) == before
        assert place.new.exists()
    assert list(out.iterdir()) == []


def test_a_lock_on_a_folder_that_is_gone_is_no_lock(out, monkeypatch):
    work = out.parent / ".out.work"

    def flock(*_):
        work.rmdir()

    monkeypatch.setattr(replacement.fcntl, "flock", flock)
    with pytest.raises(replacement.CommandFailed, match="another run is writing"), replacing(out):
        pass
