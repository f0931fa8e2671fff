"""A plugin of pytest: `-p pytest_outcomes --outcomes FOLDER` writes what became of each test, as it happens."""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # at the end: a file there is named like a module of Python's

from common.checks import Checks


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--outcomes", metavar="FOLDER")


def pytest_configure(config: Any) -> None:
    if config.getoption("--outcomes"):
        config.pluginmanager.register(Outcomes(Checks(Path(config.getoption("--outcomes")), "tests")))


class Outcomes:
    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._checks.put(nodeid, "running")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
            self._checks.put(report.nodeid, "failed", f"{report.when}: {_reason(report)}")
        elif report.skipped:
            self._checks.put(report.nodeid, "skipped", report.longrepr[2].removeprefix("Skipped: "))
        elif report.when == "call" and report.nodeid not in self._failed:
            self._checks.put(report.nodeid, "passed")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._checks.put(report.nodeid, "failed", f"collection: {_reason(report)}")


def _reason(report: Any) -> str:
    """The lines that pytest marks as the error, at most the first ten."""
    lines = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
    return " | ".join(line for line in lines[:10] if line) or report.longreprtext[-400:]
