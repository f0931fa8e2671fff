"""`freescale collisions`: what it prints, writes, and how it ends."""

import json

import pyarrow as pa
import pytest
from tools_kit import answered, ran, refused, write

SIZE = ("--ids", "ids", "--batch-size", 2, "--ranks", 4)


@pytest.fixture
def data(tmp_path):
    ids = [[n, n // 2] for n in range(64)]
    return write(tmp_path / "data" / "a.parquet", {"ids": ids, "when": list(range(64))}, group=8).parent


def test_tables_and_files(data, tmp_path):
    (data / "b.parquet").write_bytes(b"PAR1 and nothing else in it")
    out = tmp_path / "report"
    shown = ran("collisions", data, *SIZE, "--time", "when", "--dim", 16, "--out", out, status=1).output
    for words in ("by order", "by ranks", "by longest history", "Bytes that leave a rank", "(100.0 %)"):
        assert words in shown
    assert "found: b.parquet:" in shown
    document = json.loads((out / "collisions.json").read_text())
    assert (document["version"], document["kind"], document["paths"]) == (1, "collisions", [str(data)])
    found = document["collisions"]
    assert (found["dim"], found["ranks"], found["batch_size"]) == (16, 4, 2)
    assert [point["order"] for point in found["points"] if point["axis"] == "order"] == ["file", "shuffled", "time"]
    assert [one["file"] for one in found["skipped"]] == ["b.parquet"]
    assert sorted(path.name for path in out.iterdir()) == ["collisions.html", "collisions.json"]
    assert "collision" in (out / "collisions.html").read_text().lower()


def test_what_index_dedup_would_send(tmp_path):
    """Of 4 ids of a rank 2 are distinct; 3/4 of them leave it: 24 bytes of ids, 2 rows and 4 gradients of 64."""
    write(tmp_path / "a.parquet", {"ids": [[n, n] for n in range(64)]}, group=8)
    shown = ran("collisions", tmp_path, *SIZE, "--dim", 16, "--out", tmp_path / "report").output.replace("\u00a0", " ")
    assert "50.0 % of the ids of a rank's batch are duplicates. With TorchRec's index dedup" in shown
    assert "too: 204 B instead of 312 B." in " ".join(shown.split())


def test_json_alone(data, tmp_path):
    orders = ("--order", "shuffled", "--order", "file", "--order", "file")
    document = answered("collisions", data, *SIZE, "--out", tmp_path / "report", *orders)
    assert document.pop("findings") == []
    assert document == json.loads((tmp_path / "report" / "collisions.json").read_text())
    shown = [point["order"] for point in document["collisions"]["points"] if point["axis"] == "order"]
    assert shown == ["shuffled", "file"]


def test_text_is_counted_by_its_hashes(tmp_path):
    """As numbers that are different where the texts are."""
    numbers = [[n, n // 2] for n in range(64)]
    texts = [[f"item {each}" for each in row] for row in numbers]
    write(tmp_path / "a.parquet", {"ids": numbers, "names": texts}, group=8)
    command = ("collisions", tmp_path, "--batch-size", 2, "--ranks", 4, "--out", tmp_path / "report", "--ids")
    of_numbers, of_texts = answered(*command, "ids"), answered(*command, "names", "--hash")
    assert of_texts["collisions"] | {"column": "ids"} == of_numbers["collisions"]
    said = refused(*command, "ids", "--hash")
    assert "ids is list" in said
    assert "--hash makes ids of text: leave it out" in said
    assert "`freescale collisions --hash` counts hashes" in refused(*command, "names")


def test_rows_of_a_table_are_a_part_of_their_own(data, tmp_path):
    """The rest of the document is as without the option, and says nothing of a table."""
    command = ("collisions", data, *SIZE, "--time", "when", "--out", tmp_path / "report")
    alone, more = answered(*command), answered(*command, "--table-rows", 96, "--probe", "64,2", "--probe", 1)
    table = more["collisions"].pop("table")
    assert {**more, "created": ""} == {**alone, "created": ""}
    assert [one["max_probe"] for one in table["ways"]] == [None, 1, 2, 64]
    assert (table["rows"], table["distinct"], table["occurrences"], table["ttl"]) == (96, 64, 128, None)


def test_times_of_a_ttl_are_read_in_any_order(data, tmp_path):
    """64 rows, a second apart, are two hours if their times are 59 minutes and more after the hour."""
    at = pa.array(range(3540_000, 3604_000, 1000)).cast(pa.timestamp("ms"))
    write(data / "a.parquet", {"ids": [[n] for n in range(64)], "at": at})
    options = ("--order", "file", "--time", "at", "--ttl", 3, "--table-rows", 200, "--out", tmp_path / "report")
    table = answered("collisions", data, *SIZE, *options)["collisions"]["table"]
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
def test_what_to_choose(data, tmp_path, options, said):
    shown = ran("collisions", data, *SIZE, *options, "--out", tmp_path / "report").output
    assert said in " ".join(shown.split())
    page = (tmp_path / "report" / "collisions.html").read_text()
    assert "Multi-probe zero collision hashing" in page
    assert "all rows are one bucket" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", 999), "lower the batch size or the number of ranks"),
        (("--seed", -1), "--seed must be 0 or more"),
        (("--probe", 8, "--ttl", 1), "--probe and --ttl without --table-rows: give the rows of the embedding table"),
        (("--table-rows", 8, "--probe", "8,x"), "--probe 8,x: numbers joined by commas are needed"),
        (("--table-rows", 8, "--probe", 0), "--probe must be at least 1, got 0"),
        (("--table-rows", 0), "--table-rows must be from 1"),
        (("--table-rows", 8, "--ttl", 1), "--ttl needs the time of every row: name its column with --time"),
        (("--out", "data/a.parquet"), "is a file; name a folder"),
    ],
)
def test_refused(data, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused("collisions", "data", *SIZE, "--out", "report", *arguments)
    assert not (tmp_path / "report").exists()
