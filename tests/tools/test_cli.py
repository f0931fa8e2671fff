"""What the command line accepts and refuses, and with which exit status."""

from importlib.metadata import version

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from freescale_tools.cli import app
from fsdata.catalog import retry


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_synth_writes_and_lists_files(tmp_path):
    done = call("synth", "reference", tmp_path, "--scale", "0.001")
    assert done.exit_code == 0, done.output
    assert done.stdout.split() == [str(path) for path in sorted(tmp_path.iterdir())]
    assert pq.read_metadata(tmp_path / "reference-00000-of-00008.parquet").num_rows == 25
    done = call("synth", "demo", tmp_path / "demo", "--scale", "0.01")
    assert done.exit_code == 0
    assert len(done.stdout.split()) == 7


def test_synth_that_cannot_write_fails(tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = call("synth", "demo", tmp_path / "file" / "below", "--scale", "0.01")
    assert done.exit_code == 1
    assert "cannot write to" in done.stderr


def bad_usage():
    yield "unknown preset", ("synth", "nope", "x"), "nope"
    yield "scale", ("synth", "demo", "x", "--scale", "0"), "--scale must be above 0"
    yield "seed", ("synth", "demo", "x", "--seed", "-1"), "--seed must be 0 or more"
    yield "steps", ("demo", "--steps", "0"), "--steps must be at least 1"
    yield "ranks", ("demo", "--ranks", "-2"), "--ranks must be at least 1"
    yield "max length", ("demo", "--max-length", "0"), "--max-length must be at least 1"
    yield "sequence without data", ("demo", "--sequence", "a"), "--sequence names columns of --data"
    yield "unknown option", ("demo", "--nope"), "--nope"


@pytest.mark.parametrize(("arguments", "message"), [case[1:] for case in bad_usage()], ids=[c[0] for c in bad_usage()])
def test_bad_usage_is_refused(arguments, message):
    done = call(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_demo_refuses_folders_without_sequences(tmp_path):
    done = call("demo", "--data", tmp_path / "nowhere")
    assert (done.exit_code, "no such folder" in done.stderr) == (2, True)
    done = call("demo", "--data", tmp_path)
    assert (done.exit_code, "no *.parquet file" in done.stderr) == (2, True)
    pq.write_table(pa.table({"user_id": [1]}), tmp_path / "users.parquet")
    done = call("demo", "--data", tmp_path)
    assert (done.exit_code, "integer lists" in done.stderr) == (2, True)
    done = call("demo", "--data", tmp_path, "--sequence", "item_ids")
    assert (done.exit_code, "item_ids" in done.stderr) == (2, True)


class Unreachable(fsspec.AbstractFileSystem):
    """A store whose host does not answer; below `listed/` it lists a file that cannot be opened."""

    protocol = "unreachable"

    def info(self, path, **_):
        if "listed" not in path:
            raise OSError("AWS Error NETWORK_CONNECTION\nduring HeadBucket: no route to host")
        return {"name": path, "type": "file", "size": 1000}

    def _open(self, path, **_):
        raise TimeoutError("no route to host")


@pytest.mark.parametrize("path", ["unreachable://bucket/a.parquet", "unreachable://listed/a.parquet"])
@pytest.mark.parametrize("command", ["profile", "collisions", "optimize", "check", "histories"])
def test_a_store_that_cannot_be_reached_is_one_line_and_status_2(command, path, tmp_path, monkeypatch):
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 0.001)
    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    (tmp_path / "schema.toml").write_text('[schema]\ncontext = ["user_id"]\n')
    options = {
        "profile": ("--sequence", "items", "--out", tmp_path / "out"),
        "collisions": ("--ids", "items", "--out", tmp_path / "out"),
        "optimize": ("--out", tmp_path / "out"),
        "check": ("--schema", tmp_path / "schema.toml"),
        "histories": ("--by", "a", "--time", "b", "--out", tmp_path / "out"),
    }
    done = call(command, path, *options[command])
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "cannot be read" in line
    assert "no route to host" in line
    assert "credentials" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [(), ("synth",), ("demo",)])
def test_help_names_the_commands(command):
    done = call(*command, "--help")
    assert done.exit_code == 0
    assert "Usage" in done.stdout


def test_the_version_and_completion_are_there():
    done = call("--version")
    assert (done.exit_code, done.stdout) == (0, f"freescale {version('freescale')}\n")
    assert "--install-completion" in call("--help").stdout


def test_a_catalog_of_a_store_that_cannot_be_listed_is_one_line_and_status_2(tmp_path, monkeypatch):
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 0.001)
    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    done = call("catalog", "unreachable://listed/a.parquet", "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    assert "Check the address, the network, the credentials" in line
