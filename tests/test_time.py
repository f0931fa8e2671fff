"""Tests outside `tests/realtime/` depend on no clock: they do not sleep, read no time and set no small limits."""

import ast
from pathlib import Path

HERE = Path(__file__).parent
MAY_USE_CLOCKS = ("realtime", "gpu")  # run by hand only
FILES_THAT_MAY = ("patience.py", "worlds.py", "test_time.py", "test_lost_rank.py")
# Modules with a clock of their own: limits that count its seconds may be small.
VIRTUAL = {"ranks_as_threads", "played_clock", "played_network"}

LEAST_LIMIT_S = 300
LIMITS = {"timeout", "timeout_s", "limit_s"}


def _constants(tree: ast.Module) -> dict[str, float]:
    """Name -> number, of what a module sets at its top."""
    return {
        target.id: statement.value.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name) and isinstance(statement.value.value, int | float)
    }


def clock_uses(source: str) -> list[str]:
    """What a file does with time, each as "line: what". Limits of 0 and below are there to be refused."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    from_modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    names = from_modules | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    constants = _constants(tree)
    found = [f"{node.lineno}: time.{node.attr}" for node in nodes if _is_clock(node)]
    if "time" in from_modules:
        found.append("from time import ...")
    for node in nodes:
        if not isinstance(node, ast.keyword) or node.arg not in LIMITS or names & VIRTUAL:
            continue
        value = node.value
        limit = value.value if isinstance(value, ast.Constant) else constants.get(getattr(value, "id", ""))
        if isinstance(limit, int | float) and 0 < limit < LEAST_LIMIT_S:
            found.append(f"{node.value.lineno}: {node.arg}={limit}")
    return found


def _is_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"


def test_no_test_depends_on_a_clock():
    paths = [path for path in HERE.rglob("*.py") if path.relative_to(HERE).parts[0] not in MAY_USE_CLOCKS]
    uses = {
        str(path.relative_to(HERE)): clock_uses(path.read_text()) for path in paths if path.name not in FILES_THAT_MAY
    }
    assert {name: found for name, found in uses.items() if found} == {}
