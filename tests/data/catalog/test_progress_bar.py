"""What takes long to open is shown."""

import io
import logging
import sys

import pytest

from fsdata.catalog.listing import progress_bar
from fsdata.catalog.listing.progress_bar import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def advance(shown=True):
    with ProgressBar("source 0, its footers", 100, shown=shown) as bar:
        for _ in range(10):
            bar.advance(10)


def test_a_bar_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    advance()
    assert terminal.getvalue() == ""
    monkeypatch.setattr(progress_bar, "SHOWN_AFTER_S", 0.0)
    advance(shown=False)
    assert terminal.getvalue() == ""
    advance()
    assert "source 0, its footers" in terminal.getvalue()
    assert "100/100" in terminal.getvalue()


def test_a_line_in_the_log_elsewhere(monkeypatch, caplog):
    monkeypatch.setattr(progress_bar, "SHOWN_AFTER_S", 0.0)
    with caplog.at_level(logging.INFO, "fsdata"):
        advance()
    assert [each.getMessage() for each in caplog.records] == ["source 0, its footers: 10 of 100 so far"]


def fail(bar):
    bar.advance(1)
    raise OSError("gone")


def test_it_goes_where_reading_fails(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress_bar, "SHOWN_AFTER_S", 0.0)
    bar = ProgressBar("source 0", 10, shown=True)
    with pytest.raises(OSError, match="gone"), bar:
        fail(bar)
    assert bar._bar is not None
    assert not bar._bar.live.is_started
