"""Two tiers of tests, and what all tests share.

`make test` runs every promise once, with the same cases in every run. What is marked `long`, and everything in
`tests/realtime/`, runs in `make test-all` only.

Every folder of tests can be imported from: ranks of a shared world import the modules of any of them.
Tests may say one line at the end of the run: `record_property("summary", "...")`.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *sorted({str(path.parent) for path in HERE.rglob("*.py")} - {str(HERE)})]
sys.path.append(str(HERE.parent / "examples"))  # some tests compare with nano.py

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a bare GPU machine: the tests that `make gpu` runs there do without
    pass
else:
    # Load must decide nothing, so there is no deadline. The examples of a test share its fixtures on purpose.
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    always = settings(deadline=None, suppress_health_check=checks)
    settings.register_profile("fast", always, max_examples=15, derandomize=True)
    settings.register_profile("long", always, max_examples=200, print_blob=True)
    settings.load_profile("fast")  # `--hypothesis-profile=long` loads the other one


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests with worlds run in one process of pytest, so that there is one world of each size."""
    for item in items:
        if (HERE / "realtime") in item.path.parents:
            item.add_marker(pytest.mark.long)
        given = vars(item.module)  # type: ignore[attr-defined]
        if any(getattr(given.get(name), "__module__", "") == "worlds" for name in ("shared_world", "World")):
            item.add_marker(pytest.mark.xdist_group("worlds"))


@pytest.fixture
def begun() -> Callable[..., list[str]]:
    """Gives the names of living threads that began in this test, of those that begin with one of some words. Others may
    be those of loaders of earlier tests, which nothing refers to, and which are not collected yet."""
    before = set(threading.enumerate())
    return lambda *words: [each.name for each in set(threading.enumerate()) - before if each.name.startswith(words)]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Skips tests whose files an older pyarrow cannot write: with lists that are null and have elements."""
    try:
        return (yield)
    except Exception as error:
        if type(error).__name__ == "ArrowNotImplementedError" and "non-zero length null" in str(error):
            pytest.skip(f"this pyarrow is too old to write the files of the test: {error}")
        raise


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(value)
