"""The shell commands of README and docs: those of `freescale` run, the others name what is there."""

import argparse
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from unittest import mock

import pytest
import typer
from pages import PAGES, ROOT, blocks, commands, name, prose
from test_calibrate_run import run as write_run
from typer.testing import CliRunner

from freescale_tools.cli import EXAMPLES, app
from freescale_tools.model import batches, simulation
from fsdata import Schema

_SMALLER = {
    "synth": ["--rows", "64"],
    "profile": ["--ranks", "2", "--batch-size", "4"],
    "collisions": ["--ranks", "2", "--batch-size", "8"],
    "plan": ["--extrapolate"],
}


def test_commands_of_freescale_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulation, "_DRAWS", 4)
    monkeypatch.setattr(batches, "_SAMPLES", 2048)
    for run in ("run-before.json", "run.json"):
        write_run(tmp_path / run, steps=60)
    for block in blocks("docs/command-line.md", "toml"):
        (tmp_path / block.title).write_text(block.text)
    done = set()
    for command in [*(command for page in PAGES for command in commands(page)), *EXAMPLES.values()]:
        program, *arguments = shlex.split(command)
        if program != "freescale" or arguments[0] == "demo" or command in done:
            continue
        done.add(command)
        result = CliRunner().invoke(app, [*arguments, *_SMALLER.get(arguments[0], [])])
        assert result.exit_code == 0, f"{command}: {result.output}"
    offered = {command.callback.__name__ for command in app.registered_commands}
    assert {command.split()[1] for command in done} == offered - {"demo", "measure_links", "simulate"}
    written = tmp_path / "data" / "schema.toml"
    shown, *_ = blocks("docs/getting-started.md", "toml")
    assert tomllib.loads(written.read_text()) == tomllib.loads(shown.text)
    assert Schema.from_toml("schema.toml") == Schema.from_toml(written)  # what `freescale init` guesses of these files


def test_the_reference_has_every_option():
    """With its help and its default, and no hidden command. test_figures.py checks that the page is current."""
    _, *sections = re.split(r"^## ", (ROOT / "docs/command-reference.md").read_text(), flags=re.MULTILINE)
    shown = {section.partition("\n")[0]: section for section in sections}
    offered = {name: one for name, one in typer.main.get_command(app).commands.items() if not one.hidden}
    assert shown.keys() == offered.keys()
    for title, command in offered.items():
        rows = {row.split("`")[1]: row for row in shown[title].splitlines() if row.startswith("| `")}
        assert rows.keys() == {parameter.opts[0] for parameter in command.params}
        for parameter in command.params:
            row = rows[parameter.opts[0]]
            assert parameter.help.split("Default:")[0].strip() in row
            if parameter.required or type(parameter.default) in (int, float):
                assert row.endswith("| required |" if parameter.required else f"| `{parameter.default}` |")


def others():
    """(page, words of a command) of every other command, also of those that stand in the text."""
    for page in PAGES:
        in_text = re.findall(r"`((?:CUDA_\w+=\d+ )?(?:make|pip install -e|python|pytest) [^`]*)`", prose(page))
        for command in [*commands(page), *in_text]:
            words = [word for word in shlex.split(command) if not re.fullmatch(r"CUDA_\w+=\d+", word)]
            if words[0] not in ("freescale", "torchrun"):
                yield pytest.param(words, id=f"{name(page)}: {command}")


@pytest.mark.parametrize("words", list(others()))
def test_other_commands_name_what_is_there(words):
    {"make": check_make, "pip": check_pip, "python": check_python, "pytest": check_pytest}[words[0]](*words[1:])


def check_make(*arguments):
    done = subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check_pip(install, *arguments):
    """Installs what the Makefile installs, with which the demo and the tests run, or an extra of the project."""
    assert install == "install"
    installed = (ROOT / "Makefile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [f".[{name}]" for name in project["optional-dependencies"]]
    for argument in arguments:
        assert argument in installed or argument in ("-e", ".", *extras), argument


def check_python(script, *arguments):
    """A benchmark, or a module, takes these arguments, and lacks none. It is ended there: running it takes minutes."""
    if script == "-m":
        module, *arguments = arguments
        script = f"{module.replace('.', '/')}.py"
    if not re.search("ArgumentParser|argument_parser", (ROOT / script).read_text()):
        assert arguments == ()
        return
    parse = argparse.ArgumentParser.parse_args

    def only_parse(parser, *given):
        parse(parser, *given)
        raise EOFError

    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ):
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.setattr(sys, "argv", [script, *arguments])
        patch.setattr(argparse.ArgumentParser, "parse_args", only_parse)
        with pytest.raises(EOFError):
            runpy.run_path(str(ROOT / script), run_name="__main__")


def check_pytest(*arguments):
    """The options and folders of the project's own tests."""
    marker = arguments[arguments.index("-m") + 1]
    assert f'"{marker}:' in (ROOT / "pyproject.toml").read_text()
    assert (ROOT / arguments[-1]).exists()
