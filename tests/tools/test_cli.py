"""What the command line accepts and refuses, and with which exit status."""

from importlib.metadata import version

import fsspec
import pytest
from typer.testing import CliRunner

from freescale_tools.cli import app
from fsdata.catalog import retry


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_version_completion_and_help_are_there():
    done = call("--version")
    assert (done.exit_code, done.stdout) == (0, f"freescale {version('freescale')}\n")
    assert "--install-completion" in call("--help").stdout
    for command in app.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        done = call(name, "--help")
        assert (done.exit_code, f"{name} [OPTIONS]" in done.stdout) == (0, True), done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("synth", "nope", "x"), "nope"),
        (("demo", "--steps", 0), "--steps must be at least 1"),
        (("demo", "--ranks", -2), "--ranks must be at least 1"),
        (("demo", "--max-length", 0), "--max-length must be at least 1"),
        (("demo", "--sequence", "a"), "--sequence names columns of --data"),
        (("demo", "--data", "nowhere"), "no such folder"),
        (("demo", "--nope"), "--nope"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_bad_usage_is_refused(arguments, message):
    done = call(*arguments)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


class Unreachable(fsspec.AbstractFileSystem):
    """A store whose host does not answer; below `listed/` it lists a file that cannot be opened."""

    protocol = "unreachable"

    def info(self, path, **_):
        if "listed" not in path:
            raise OSError("AWS Error NETWORK_CONNECTION\nduring HeadBucket: no route to host")
        return {"name": path, "type": "file", "size": 1000}

    def _open(self, path, **_):
        raise TimeoutError("no route to host")


READING = {
    "profile": ("--sequence", "items"),
    "collisions": ("--ids", "items"),
    "optimize": (),
    "check": ("--schema", "schema.toml"),
    "init": (),
    "histories": ("--by", "a", "--time", "b"),
    "catalog": (),
}


@pytest.mark.parametrize(
    ("command", "path"),
    [*((command, "unreachable://listed/a.parquet") for command in READING), ("profile", "unreachable://bucket/a")],
)
def test_a_store_that_cannot_be_reached_is_one_line_and_status_2(command, path, tmp_path, monkeypatch):
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 0.001)
    monkeypatch.chdir(tmp_path)
    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    (tmp_path / "schema.toml").write_text('[schema]\ncontext = ["user_id"]\n')
    done = call(command, path, *READING[command], *(() if command == "check" else ("--out", "out")))
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for part in ("cannot be read", "no route to host", "credentials"):
        assert part in line
    assert not (tmp_path / "out").exists()
