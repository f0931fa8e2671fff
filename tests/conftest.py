"""Every folder of tests can be imported from: ranks of a shared world import the modules of any of them.

Tests may say one line at the end of the run: `record_property("summary", "...")`.
"""

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *sorted({str(path.parent) for path in HERE.rglob("*.py")} - {str(HERE)})]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(value)
