"""Encrypted files: what is guessed of their columns, and read by commands."""

import pytest
from test_encrypted import write_encrypted
from typer.testing import CliRunner

from freescale_tools.cli import app
from fsdata import Schema, Sequence


@pytest.fixture
def path(tmp_path):
    write_encrypted(tmp_path / "a.parquet", ["secret"])
    return tmp_path / "a.parquet"


def test_guesses_leave_encrypted_columns_out(path, caplog):
    assert Schema.infer(path) == Schema(context=("user",), sequences=[Sequence("uih", fields=("items",))])
    assert caplog.messages == ["Schema.infer leaves out secret: it is encrypted"]


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["profile", "--sequence", "items"], 0, "written to"),
        (["profile", "--sequence", "secret"], 2, "a.parquet: secret is encrypted"),
        (["optimize"], 1, "column 'secret' is encrypted"),  # looks at the chunks of all columns
    ],
)
def test_commands_read_the_other_columns(path, command, code, said):
    out = path.with_name("out")
    result = CliRunner().invoke(app, [*command, str(path), "--out", str(out)])
    assert (result.exit_code, said in " ".join(result.output.split())) == (code, True), result.output
