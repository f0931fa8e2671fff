"""`freescale collisions`: what it prints, writes, and how it ends."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from freescale_tools.collisions.command import collisions


@pytest.fixture
def run():
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(collisions)

    def invoke(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    table = {"ids": pa.array([[n, n // 2] for n in range(64)]), "when": list(range(64))}
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=8)
    return folder


def test_tables_and_files(run, data, tmp_path):
    out = tmp_path / "report"
    done = run(data, "--ids", "ids", "--batch-size", 2, "--ranks", 4, "--time", "when", "--dim", 16, "--out", out)
    assert done.exit_code == 0, done.output
    for words in ("by order", "by ranks", "by history length", "Bytes a rank sends", "100.0% of the rows were read"):
        assert words in done.output
    document = json.loads((out / "collisions.json").read_text())
    assert (document["version"], document["kind"], document["paths"]) == (1, "collisions", [str(data)])
    found = document["collisions"]
    assert (found["dim"], found["ranks"], found["batch_size"]) == (16, 4, 2)
    assert [point["order"] for point in found["points"] if point["axis"] == "order"] == ["file", "shuffled", "time"]
    assert sorted(path.name for path in out.iterdir()) == ["collisions.html", "collisions.json"]
    assert "collision" in (out / "collisions.html").read_text().lower()


def test_json_alone(run, data, tmp_path):
    arguments = (data, "--ids", "ids", "--batch-size", 2, "--ranks", 4, "--out", tmp_path / "report", "--json")
    done = run(*arguments, "--order", "shuffled", "--order", "file", "--order", "file")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document.pop("findings") == []
    assert document == json.loads((tmp_path / "report" / "collisions.json").read_text())
    assert document["collisions"]["points"][0]["order"] == "shuffled"
    assert sum(point["axis"] == "order" for point in document["collisions"]["points"]) == 2


def test_damaged_files_are_findings(run, data, tmp_path):
    (data / "b.parquet").write_bytes(b"PAR1 and nothing else in it")
    done = run(data, "--ids", "ids", "--batch-size", 2, "--ranks", 4, "--out", tmp_path / "report")
    assert done.exit_code == 1
    assert "found: b.parquet:" in done.output
    document = json.loads((tmp_path / "report" / "collisions.json").read_text())
    assert [one["file"] for one in document["collisions"]["skipped"]] == ["b.parquet"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ids", "no"), "no file has a column 'no'"),
        (("--ids", "ids", "--ranks", "999"), "lower the batch size or the number of ranks"),
        (("--ids", "ids", "--order", "time"), "name it with --time"),
        (("--ids", "ids", "--seed", "-1"), "--seed must be 0 or more"),
    ],
)
def test_refused(run, data, tmp_path, arguments, message):
    done = run(data, *arguments, "--out", tmp_path / "report")
    assert done.exit_code == 2
    assert message in done.output
    assert not (tmp_path / "report").exists()


def test_a_file_is_no_folder(run, data, tmp_path):
    done = run(data, "--ids", "ids", "--out", data / "a.parquet")
    assert done.exit_code == 2
    assert "is a file; name a folder" in done.output
