"""What the command line accepts and refuses, and with which exit status."""

import shlex
from importlib.metadata import version

import fsspec
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from freescale_tools.cli import EXAMPLES, app
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


def test_help_lists_whole_descriptions():
    shown = " ".join(call("--help").stdout.split())
    for command in EXAMPLES:
        about = " ".join(command.__doc__.partition("\n\n")[0].split())
        assert f"{command.__name__.replace('_', '-')} {about}" in shown


@pytest.mark.parametrize("command", EXAMPLES, ids=lambda command: command.__name__)
def test_help_has_an_example_with_options_that_are_there(command):
    """That examples run is tested with those of docs/."""
    name = command.__name__.replace("_", "-")
    example = call(name, "--help").stdout.partition("\n  Example:\n    ")[2].strip()
    before, _, after = example.partition(f"freescale {name} ")
    assert after, f"{name} has no example"
    assert before == "" or before.startswith("torchrun ")
    options = {option for each in get_command(app).commands[name].params for option in each.opts}
    assert {word for word in shlex.split(after) if word.startswith("--")} <= options


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
