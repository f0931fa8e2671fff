"""The notebooks in `examples/` run from their first cell to their last, as Jupyter runs them, and hold no outputs."""

import json
import shlex
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from pages import ROOT
from test_example_programs import ran_in
from typer.testing import CliRunner
from worlds import shared_world

from freescale_tools.cli import app
from freescale_tools.model import batches, simulation

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SMALLER = {"synth": ["--rows", "100"], "profile": ["--extrapolate"]}


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def run_cell(text: str, scope: dict[str, Any], folder: Path) -> str:
    """What the cell printed: commands of the shell, a file to write, or Python."""
    if text.startswith("%%writefile "):
        head, _, body = text.partition("\n")
        (folder / head.removeprefix("%%writefile ")).write_text(body)
        return ""
    if not text.startswith("!"):
        exec(compile(text, "cell", "exec"), scope)
        return ""
    said = ""
    for line in text.splitlines():
        assert line.startswith("!"), f"{line}: commands and Python stand in cells of their own"
        program, *words = shlex.split(line[1:])
        if program == "torchrun":  # the ranks are there already
            said += str(shared_world(2).run(ran_in, folder, words[-1])[0])
            continue
        assert program == "freescale", line
        done = CliRunner().invoke(app, [*words, *SMALLER.get(words[0], [])])
        assert done.exit_code == 0, f"{line}: {done.output}"
        said += done.stdout
    return said


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a notebook; its variables, and what its commands printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulation, "_DRAWS", 4)
    monkeypatch.setattr(batches, "_SAMPLES", 2048)
    plt.switch_backend("Agg")

    def run(name: str) -> tuple[dict[str, Any], str]:
        scope: dict[str, Any] = {}
        cells = ["".join(cell["source"]) for cell in code_cells(ROOT / "examples" / name)]
        return scope, "".join(run_cell(text, scope, tmp_path) for text in cells)

    yield run
    plt.close("all")


def test_profile_a_data_set(run, capsys):
    scope, said = run("profile_a_data_set.ipynb")
    assert "400 rows of 1 source(s) fit the schema" in said
    assert next(iter(scope["shares"])) == "none"
    assert "FreeScaleDataLoader" in capsys.readouterr().out
    assert len(scope["figure"].axes) == 2


def test_train_and_look(run):
    scope, said = run("train_and_look.ipynb")
    assert "served in training" in said
    assert scope["table"].columns == ["ms of a step", "plain", "balanced"]
    assert all(mean >= 0 for mean in scope["ends"].values())
    plain, balanced = (scope["runs"][name] for name in ("plain", "balanced"))
    assert len(plain) == len(balanced) > 0


def test_no_outputs_are_kept():
    """They would get old; and one test runs each notebook."""
    for notebook in NOTEBOOKS:
        kept = [cell for cell in code_cells(notebook) if cell["outputs"] or cell["execution_count"] is not None]
        assert kept == [], notebook
        assert f'run("{notebook.name}")' in Path(__file__).read_text()
