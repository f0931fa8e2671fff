"""`freescale measure-links` on a rank whose peers do not come."""

import socket

from typer.testing import CliRunner

from freescale_tools.cli import app


def test_a_rank_that_does_not_come_is_an_error_not_a_wait(monkeypatch):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        free_port = server.getsockname()[1]
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ["measure-links", "--timeout-s", "1"])
    assert done.exit_code == 1, done.output
    assert "rank 0: " in done.stderr
