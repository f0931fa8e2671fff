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


def others(program: str) -> set[tuple[str, ...]]:
    """The words after `program` of every command of the pages, also of those that stand in the text."""
    found = set()
    for page in PAGES:
        in_text = re.findall(r"`((?:CUDA_\w+=\d+ )?(?:make|pip install -e|python|pytest) [^`]*)`", prose(page))
        for command in [*commands(page), *in_text]:
            first, *words = [word for word in shlex.split(command) if not re.fullmatch(r"CUDA_\w+=\d+", word)]
            assert first in ("freescale", "torchrun", "make", "pip", "python", "pytest"), f"{name(page)}: {command}"
            if first == program:
                found.add(tuple(words))
    return found


def test_targets_are_those_of_the_makefile():
    wanted = sorted({word for words in others("make") for word in words})
    done = subprocess.run(["make", "-n", *wanted], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_installed_is_in_the_makefile_or_an_extra_of_the_project():
    """The Makefile installs that with which the demo and the tests run."""
    installed = (ROOT / "Makefile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [f".[{name}]" for name in project["optional-dependencies"]]
    for install, *packages in others("pip"):
        assert install == "install"
        assert [each for each in packages if each not in installed and each not in ("-e", ".", *extras)] == []


@pytest.mark.parametrize("words", sorted(others("python")), ids=" ".join)
def test_scripts_and_modules_take_these_arguments(words):
    """And lack none. A script is ended there: running it takes minutes."""
    script, *arguments = words
    if script == "-m":
        module, *arguments = arguments
        script = f"{module.replace('.', '/')}.py"
    if not re.search("ArgumentParser|argument_parser", (ROOT / script).read_text()):
        assert arguments == []
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


def test_tests_that_are_named_are_there():
    settings = (ROOT / "pyproject.toml").read_text()
    for words in others("pytest"):
        assert f'"{words[words.index("-m") + 1]}:' in settings
        assert (ROOT / words[-1]).exists()
