"""Tests may say one line at the end of the run: `record_property("summary", "...")`."""

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(value)
