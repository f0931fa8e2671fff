"""What a command prints and how it ends."""

import json

import numpy as np
import pytest
import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.terminal import Terminal


def test_json_alone_goes_to_standard_output(capsys):
    with Terminal(json=True) as terminal, terminal.progress("reading", rows=3) as progress:
        progress.advance(rows=3)
        terminal.say("for people")
        terminal.table("title", ["a"], [[1]])
        terminal.result({"a": np.arange(2), "b": np.float64(0.5)})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"a": [0, 1], "b": 0.5, "findings": []}
    assert err == ""


def test_findings_end_with_status_1_and_stand_in_the_document(capsys):
    def command() -> None:
        with Terminal(json=True) as terminal:
            terminal.finding("[x.parquet] is cut")
            terminal.result({})

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"findings": ["[x.parquet] is cut"]}
    assert "found: [x.parquet] is cut" in err


@pytest.mark.parametrize(
    ("error", "status"), [(UsageError("no [such] file"), 2), (CommandFailed("it broke"), 1), (KeyboardInterrupt(), 130)]
)
def test_errors_end_with_their_status(capsys, error, status):
    with pytest.raises(typer.Exit) as ended, Terminal():
        raise error
    assert ended.value.exit_code == status
    out, err = capsys.readouterr()
    assert out == ""
    assert (str(error) or "interrupted") in err


def test_names_are_printed_as_they_are(capsys):
    """Brackets and words between colons mean something to rich."""
    odd = "[red]a[/red] module:x: b"
    with Terminal() as terminal:
        terminal.say(odd)
        terminal.table(odd, [odd], [[odd]], notes=[odd])
    with pytest.raises(typer.Exit), Terminal():
        raise UsageError(odd)
    out, err = capsys.readouterr()
    assert out.count(odd) == 5
    assert odd in err


def test_other_errors_pass():
    def command() -> None:
        with Terminal() as terminal:
            terminal.finding("before it")
            raise LookupError

    with pytest.raises(LookupError):
        command()


def test_people_get_tables(capsys):
    with Terminal() as terminal:
        terminal.table("Lengths", ["file", "rows", "share"], [["a", 12345, 0.123456], ["b", None, 1e6]], notes=["why"])
        terminal.result({"not": "shown"})
    out, _ = capsys.readouterr()
    for text in ("Lengths", "12,345", "0.1235", "1,000,000", "-", "why"):
        assert text in out
    assert "not" not in out
