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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ids", "no"), "no file has a column 'no'"),
        (("--ranks", 999), "lower the batch size or the number of ranks"),
        (("--order", "time"), "name it with --time"),
        (("--seed", -1), "--seed must be 0 or more"),
        (("--out", "data/a.parquet"), "is a file; name a folder"),
    ],
)
def test_refused(call, data, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = call("data", *SIZE, "--out", "report", *arguments)
    assert (done.exit_code, message in done.output) == (2, True), done.output
    assert not (tmp_path / "report").exists()
