"""`freescale collisions`: what it prints, writes, and how it ends."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COMMAND = "collisions"
SIZE = ("--ids", "ids", "--batch-size", 2, "--ranks", 4)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    table = {"ids": pa.array([[n, n // 2] for n in range(64)]), "when": list(range(64))}
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=8)
    return folder


def test_tables_and_files(call, data, tmp_path):
    (data / "b.parquet").write_bytes(b"PAR1 and nothing else in it")
    out = tmp_path / "report"
    done = call(data, *SIZE, "--time", "when", "--dim", 16, "--out", out)
    assert done.exit_code == 1, "a file is damaged"
    for words in ("by order", "by ranks", "by longest history", "Bytes that leave a rank", "(100.0 %)"):
        assert words in done.output
    assert "found: b.parquet:" in done.output
    document = json.loads((out / "collisions.json").read_text())
    assert (document["version"], document["kind"], document["paths"]) == (1, "collisions", [str(data)])
    found = document["collisions"]
    assert (found["dim"], found["ranks"], found["batch_size"]) == (16, 4, 2)
    assert [point["order"] for point in found["points"] if point["axis"] == "order"] == ["file", "shuffled", "time"]
    assert [one["file"] for one in found["skipped"]] == ["b.parquet"]
    assert sorted(path.name for path in out.iterdir()) == ["collisions.html", "collisions.json"]
    assert "collision" in (out / "collisions.html").read_text().lower()


def test_json_alone(call, data, tmp_path):
    orders = ("--order", "shuffled", "--order", "file", "--order", "file")
    done = call(data, *SIZE, "--out", tmp_path / "report", "--json", *orders)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document.pop("findings") == []
    assert document == json.loads((tmp_path / "report" / "collisions.json").read_text())
    assert [point["order"] for point in document["collisions"]["points"] if point["axis"] == "order"] == [
        "shuffled", "file",
    ]  # fmt: skip


def test_text_is_counted_by_its_hashes(call, tmp_path):
    """As numbers that are different where the texts are."""
    numbers = [[n, n // 2] for n in range(64)]
    texts = [[f"item {each}" for each in row] for row in numbers]
    pq.write_table(pa.table({"ids": numbers, "names": texts}), tmp_path / "a.parquet", row_group_size=8)
    size = ("--batch-size", 2, "--ranks", 4, "--json")
    of_numbers, of_texts = (
        json.loads(call(tmp_path, "--ids", *options, *size).stdout)["collisions"]
        for options in (("ids",), ("names", "--hash"))
    )
    assert of_texts.pop("column") == "names"
    of_numbers.pop("column")
    assert of_texts == of_numbers
    assert "ids is list" in call(tmp_path, "--ids", "ids", "--hash", *size).stderr
    assert "`freescale collisions --hash` counts hashes" in call(tmp_path, "--ids", "names", *size).stderr
    assert "--hash makes ids of text: leave it out" in call(tmp_path, "--ids", "ids", "--hash", *size).stderr


def test_rows_of_a_table_are_a_part_of_their_own(call, data, tmp_path):
    """The rest of the document is as without the option, and says nothing of a table."""
    alone, more = (
        call(data, *SIZE, "--time", "when", "--out", tmp_path / "report", "--json", *options)
        for options in ((), ("--table-rows", 96, "--probe", "64,2", "--probe", 1))
    )
    assert (alone.exit_code, more.exit_code) == (0, 0), more.output
    alone, more = json.loads(alone.stdout), json.loads(more.stdout)
    table = more["collisions"].pop("table")
    assert {**more, "created": ""} == {**alone, "created": ""}
    assert [one["max_probe"] for one in table["ways"]] == [None, 1, 2, 64]
    assert (table["rows"], table["distinct"], table["occurrences"], table["ttl"]) == (96, 64, 128, None)


def test_times_of_a_ttl_are_read_in_any_order(call, data, tmp_path):
    """64 rows, a second apart, are two hours if their times are 59 minutes and more after the hour."""
    table = {"ids": pa.array([[n] for n in range(64)]), "at": pa.array(range(3540_000, 3604_000, 1000))}
    pq.write_table(pa.table({**table, "at": table["at"].cast(pa.timestamp("ms"))}), data / "a.parquet")
    arguments = ("--order", "file", "--time", "at", "--ttl", 3, "--table-rows", 200, "--json")
    done = call(data, *SIZE, *arguments, "--out", tmp_path / "report")
    assert done.exit_code == 0, done.output
    table = json.loads(done.stdout)["collisions"]["table"]
    assert (table["ttl"], table["hours"], table["without_time"]) == (3, 2, 0)
    assert [one["evictions_per_million"] for one in table["ways"]] == [None, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--table-rows", 9600), "Choose a probe length of 8, the smallest of these at which fewer than 0.1 %"),
        (("--table-rows", 65, "--probe", 1), "The table is too small (64 distinct ids, 1.02 rows per id)"),
        (("--table-rows", 65, "--probe", 1), "Give it more rows, or try a longer probe."),
        (("--table-rows", 32), "There are more ids (64) than rows (32): not all"),
        (("--table-rows", 65, "--time", "when", "--ttl", 1), "The data spans 1 hour; an id that has not occurred"),
    ],
)
def test_what_to_choose(call, data, tmp_path, options, said):
    done = call(data, *SIZE, *options, "--out", tmp_path / "report")
    assert done.exit_code == 0, done.output
    assert said in " ".join(done.output.split())
    page = (tmp_path / "report" / "collisions.html").read_text()
    assert "Multi-probe zero collision hashing" in page
    assert "all rows are one bucket" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ids", "no"), "no file has a column 'no'"),
        (("--ranks", 999), "lower the batch size or the number of ranks"),
        (("--order", "time"), "name it with --time"),
        (("--seed", -1), "--seed must be 0 or more"),
        (("--probe", 8, "--ttl", 1), "--probe and --ttl without --table-rows: give the rows of the embedding table"),
        (("--table-rows", 8, "--probe", "8,x"), "--probe 8,x: numbers joined by commas are needed"),
        (("--table-rows", 8, "--probe", 0), "--probe must be at least 1, got 0"),
        (("--table-rows", 0), "--table-rows must be from 1"),
        (("--table-rows", 8, "--ttl", 1), "--ttl needs the time of every row: name its column with --time"),
        (("--out", "data/a.parquet"), "is a file; name a folder"),
    ],
)
def test_refused(call, data, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = call("data", *SIZE, "--out", "report", *arguments)
    assert (done.exit_code, message in done.output) == (2, True), done.output
    assert not (tmp_path / "report").exists()
