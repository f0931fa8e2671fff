"""Shows the result of a command, as tables and bars or as one JSON document, and sets the exit status.

With `json`, standard output carries only the document. Messages and bars go to standard error. Bars appear
only if standard error is a terminal.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from freescale_tools.console.errors import CommandFailed, UsageError

FOUND, USAGE = 1, 2
INTERRUPTED = 130
_LOG_WIDTH = 120
_FOLDED = 12  # text is not folded into less


class Progress(Protocol):
    """Counts the work that is done. Any thread may call `advance`."""

    def advance(self, *, rows: int = 0, bytes: int = 0) -> None: ...


class Terminal:
    """One run of a command: `with Terminal(json=...) as terminal`.

    The block ends in `typer.Exit` with status 1 after a `finding` or CommandFailed, 2 after UsageError and
    130 after Ctrl-C. Other exceptions pass through.
    """

    def __init__(self, *, json: bool = False) -> None:
        self._json = json
        self._out = Console(highlight=False, emoji=False)
        if not self._out.is_terminal:  # a pipe or a log has no width of its own
            self._out.width = max(self._out.width, _LOG_WIDTH) if "COLUMNS" not in os.environ else self._out.width
        self._err = Console(stderr=True, highlight=False, emoji=False)
        self._findings: list[str] = []
        self._answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, UsageError):
            self._error(str(error))
            raise typer.Exit(USAGE) from None
        if isinstance(error, CommandFailed):
            self._error(str(error))
            raise typer.Exit(FOUND) from None
        if isinstance(error, KeyboardInterrupt):
            self._error("interrupted: nothing half-written is left")
            raise typer.Exit(INTERRUPTED) from None
        if error is None and self._findings:
            raise typer.Exit(FOUND)

    def say(self, text: str) -> None:
        """Print a line for people."""
        if not self._json:
            self._out.print(text, markup=False, soft_wrap=True)

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, notes: Sequence[str] = ()
    ) -> None:
        """Print a table for people.

        Text is aligned left, numbers right; None is a dash; floats have four digits. Text is folded where the table is
        wider than the window, numbers never: the last columns are left out instead, and named.
        """
        if self._json:
            return
        cells = [[_text(value) for value in row] for row in rows]
        words = [any(isinstance(row[place], str) for row in rows) for place in range(len(columns))]
        headings, shown = _fitting(columns, cells, words, self._out.width)
        table = Table(title=Text(title), title_justify="left")
        for place in range(shown):
            justify: Any = "left" if words[place] else "right"
            table.add_column(Text(headings[place]), justify=justify, overflow="fold", no_wrap=not words[place])
        for row in cells:
            table.add_row(*(Text(cell) for cell in row[:shown]))
        self._out.print(table)
        if shown < len(columns):
            self.say(f"Left out, as the window is narrow: {', '.join(columns[shown:])}.")
        for note in notes:
            self.say(note)

    def finding(self, text: str) -> None:
        """Show something that the user has to look at. The command goes on and ends with status 1."""
        self._findings.append(text)
        self._err.print(f"found: {text}", markup=False, soft_wrap=True)

    def result(self, document: Mapping[str, Any]) -> None:
        """Print the document, with the findings in it, if JSON was asked for. A command does this once."""
        if self._answered:
            raise AssertionError("a command has one result")
        self._answered = True
        if self._json:
            whole = {**document, "findings": self._findings}
            sys.stdout.write(json.dumps(whole, default=plain, allow_nan=False) + "\n")

    @contextlib.contextmanager
    def progress(self, what: str, *, rows: int | None = None, bytes: int | None = None) -> Iterator[Progress]:
        """Show a bar with rows, bytes, rates and the time left. The totals, if given, set its length."""
        if not self._err.is_terminal:
            yield _Silent()
            return
        with Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            _Counts(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._err,
            transient=True,
        ) as bars:
            total = bytes if bytes else rows
            task = bars.add_task(what, total=total, rows=0, bytes=0)
            yield _Bar(bars, task, by_bytes=bool(bytes))

    def _error(self, message: str) -> None:
        self._err.print(f"error: {message}", markup=False, soft_wrap=True)


class _Silent:
    def advance(self, *, rows: int = 0, bytes: int = 0) -> None:
        pass


class _Bar:
    def __init__(self, bars: Bars, task: Any, *, by_bytes: bool) -> None:
        self._bars = bars
        self._task = task
        self._by_bytes = by_bytes

    def advance(self, *, rows: int = 0, bytes: int = 0) -> None:
        fields = self._bars.tasks[self._task].fields
        self._bars.update(
            self._task,
            advance=bytes if self._by_bytes else rows,
            rows=fields["rows"] + rows,
            bytes=fields["bytes"] + bytes,
        )


class _Counts(ProgressColumn):
    def render(self, task: Task) -> Text:
        rows, size, elapsed = task.fields["rows"], task.fields["bytes"], task.elapsed or 0.0
        parts = [f"{rows:,} rows"] if rows else []
        parts += [decimal(size)] if size else []
        if elapsed > 0:
            parts += [f"{rows / elapsed:,.0f} rows/s"] if rows else []
            parts += [f"{decimal(int(size / elapsed))}/s"] if size else []
        return Text(" ".join(parts))


def _fitting(
    columns: Sequence[str], cells: Sequence[Sequence[str]], words: Sequence[bool], width: int
) -> tuple[list[str], int]:
    """Headings, on several lines if one line is too wide, and how many columns fit."""
    columns = list(columns)
    for headings in (columns, [name.replace(" ", "\n") for name in columns]):
        needed = [
            max(_least(one, may_fold=folds) for one in [*headings[place].split("\n"), *(row[place] for row in cells)])
            for place, folds in enumerate(words)
        ]
        ends = [sum(needed[: last + 1]) + 3 * (last + 1) + 1 for last in range(len(columns))]
        if ends and ends[-1] <= width:
            return headings, len(columns)
    return headings, min(max(sum(end <= width for end in ends), 1), len(columns))


def _least(text: str, *, may_fold: bool) -> int:
    """The fewest characters a line of a column needs."""
    return min(len(text), _FOLDED) if may_fold else len(text)


def plain(value: Any) -> Any:
    """Turn arrays and numpy numbers into lists and numbers, for `json.dumps`."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no place in a JSON document")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
