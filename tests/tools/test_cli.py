"""What the command line accepts and refuses, and with which exit status."""

import shlex
from importlib.metadata import version

import fsspec
import pytest
from tools_kit import ran, refused
from typer.main import get_command

from freescale_tools.cli import EXAMPLES, app
from fsdata.catalog import retry


def names():
    return {command: command.__name__.replace("_", "-") for command in EXAMPLES}


def test_version_completion_and_help_are_there():
    assert ran("--version").stdout == f"freescale {version('freescale')}\n"
    shown = ran("--help").stdout
    assert "--install-completion" in shown
    for command, name in names().items():
        about = " ".join(command.__doc__.partition("\n\n")[0].split())
        assert f"{name} {about}" in " ".join(shown.split()), "whole descriptions"
    for command in app.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        assert f"{name} [OPTIONS]" in ran(name, "--help").stdout


@pytest.mark.parametrize("name", names().values())
def test_help_has_an_example_with_options_that_are_there(name):
    """That examples run is tested with those of docs/."""
    example = ran(name, "--help").stdout.partition("\n  Example:\n    ")[2].strip()
    before, _, after = example.partition(f"freescale {name} ")
    assert after, f"{name} has no example"
    assert before == "" or before.startswith("torchrun ")
    options = {option for each in get_command(app).commands[name].params for option in each.opts}
    assert {word for word in shlex.split(after) if word.startswith("--")} <= options


def test_unknown_choices_and_options_are_refused():
    assert "nope" in refused("synth", "nope", "x")
    assert "--nope" in refused("demo", "--nope")


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
    "check": (),
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
    options = ("--schema", "schema.toml") if command == "check" else (*READING[command], "--out", "out")
    (said,) = ran(command, path, *options, status=2).stderr.splitlines()
    assert said.startswith("error: ")
    for part in ("cannot be read", "no route to host", "credentials"):
        assert part in said
    assert not (tmp_path / "out").exists()
