"""For tests of commands."""

import pytest
from typer.testing import CliRunner

from freescale_tools.cli import app


@pytest.fixture
def call(request):
    """Runs the command that the test's module names as COMMAND, with arguments of any type."""

    def run(*arguments):
        return CliRunner().invoke(app, [request.module.COMMAND, *map(str, arguments)])

    return run
