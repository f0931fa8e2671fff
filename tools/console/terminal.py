"""Shows the result of a command, as a report and bars or as one JSON document, and sets the exit status.

With `json`, standard output carries only the document. Messages and bars go to standard error. Bars appear
only if standard error is a terminal.
"""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import typer

from freescale_tools.console.errors import CommandFailed, UsageError
from freescale_tools.console.files import plain, write_report
from freescale_tools.report.blocks import Block, Code, Column, Plot, Points, Report, Table
from freescale_tools.report.numbers import PLAIN, WORDS

FOUND, USAGE = 1, 2
INTERRUPTED = 130
_LOG_WIDTH = 120
_FOLDED = 12  # text is not folded into less
_ASCII = str.maketrans({"\u00a0": " ", "−": "-", "–": "-"})  # what can be searched for in a log


class Progress:
    """A bar of rich, with rows and bytes and how many a second. Any thread may call `advance`."""

    def __init__(self, bars: Any, task: Any, *, by_bytes: bool) -> None:
        self._bars, self._task, self._by_bytes = bars, task, by_bytes
        self._rows = self._bytes = 0
        self._lock = threading.Lock()

    def advance(self, *, rows: int = 0, bytes: int = 0) -> None:
        from rich.filesize import decimal

        with self._lock:
            self._rows += rows
            self._bytes += bytes
            elapsed = self._bars.tasks[0].elapsed or 0.0
            each = ((self._rows, lambda value: f"{int(value):,} rows"), (self._bytes, decimal))
            said = [f"{write(done)} {write(int(done / elapsed))}/s" for done, write in each if done and elapsed]
            done = self._bytes if self._by_bytes else self._rows
            self._bars.update(self._task, completed=done, done=", ".join(said))


class Terminal:
    """One run of a command: `with Terminal(json=...) as terminal`.

    The block ends in `typer.Exit` with status 1 after a `finding` or CommandFailed, 2 after UsageError and
    130 after Ctrl-C. Other exceptions pass through.
    """

    def __init__(self, *, json: bool = False) -> None:
        from rich.console import Console

        self._json = json
        self._out = Console(highlight=False, emoji=False)
        if not self._out.is_terminal:  # a pipe or a log has no width of its own
            self._out.width = max(self._out.width, _LOG_WIDTH) if "COLUMNS" not in os.environ else self._out.width
        self._err = Console(stderr=True, highlight=False, emoji=False)
        self._findings: list[str] = []
        self._answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for ends, status in ((UsageError, USAGE), (CommandFailed, FOUND), (KeyboardInterrupt, INTERRUPTED)):
            if isinstance(error, ends):
                said = "interrupted: nothing half-written is left" if status == INTERRUPTED else str(error)
                self._err.print(f"error: {said}", markup=False, soft_wrap=True)
                raise typer.Exit(status) from None
        if error is None and self._findings:
            raise typer.Exit(FOUND)

    def say(self, text: str) -> None:
        """Print a line for people. It is wrapped on a screen only: a pipe gets it in one piece."""
        if not self._json:
            self._out.print(text, markup=False, soft_wrap=not self._out.is_terminal)

    def finish(
        self, document: Mapping[str, Any], report: Report, out: Path | None, name: str, *, notes: Sequence[str] = (),
        whole: bool = True,
    ) -> None:  # fmt: skip
        """Write the document and its page as `write_report`; show the report, the notes and where it is written.

        Of the report, the terminal has its head, and sections with blocks for it; only the first one unless `whole`.
        The document is the `result`.
        """
        from rich.rule import Rule
        from rich.text import Text

        written = write_report(document, report, out, name)
        facts = (f"{fact.lower()} {value.translate(_ASCII)}" for fact, value in report.facts)
        self.say("; ".join([report.title, *facts]))
        for section in report.sections if whole else report.sections[:1]:
            blocks = [block for block in section.blocks if block.on_terminal]
            if self._json or not blocks:
                continue
            self._out.print("", Rule(Text(section.title), align="left", style=""))
            if section.intro:
                self.say(section.intro.translate(_ASCII))
            self.show(blocks)
        for note in (*notes, written):
            self.say(note)
        self.result(document)

    def show(self, blocks: Iterable[Block]) -> None:
        """Print blocks for people; of plots the sentence that reads them, and the table."""
        if self._json:
            return
        for block in blocks:
            match block:
                case Table():
                    self._table(block)
                case Plot():
                    self.say(block.aid.translate(_ASCII))
                    if block.table:
                        self._table(block.table)
                case Points():
                    if block.title:
                        self.say(block.title)
                    for sentence in block.sentences:
                        self.say(f"- {sentence.translate(_ASCII)}")
                case Code():
                    self._out.print(f"\n{block.text.rstrip()}", markup=False, soft_wrap=True)

    def table(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, notes: Sequence[str] = ()
    ) -> None:
        """Print a table of values of any kind: text is aligned left, numbers right; floats have four digits."""
        words = [any(isinstance(row[place], str) for row in rows) for place in range(len(columns))]
        shown = [Column(name, WORDS if words[place] else PLAIN, place) for place, name in enumerate(columns)]
        self.show([Table(title=title, columns=shown, rows=rows, notes=notes)])

    def finding(self, text: str) -> None:
        """Show something that the user has to look at. The command goes on and ends with status 1."""
        self._findings.append(text)
        self._err.print(f"found: {text}", markup=False, soft_wrap=True)

    def skipped(self, skipped: Iterable[Mapping[str, Any]]) -> None:
        """A finding for every file or row group that was left out."""
        for one in skipped:
            group = "" if one["row_group"] is None else f", row group {one['row_group']}"
            rows = f" ({one['rows']:,} rows left out)" if one["rows"] else ""
            self.finding(f"{one['file']}{group}: {one['reason']}{rows}")

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
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TextColumn("{task.fields[done]}"),
            progress.TimeElapsedColumn(), progress.TimeRemainingColumn(),
        )  # fmt: skip
        with progress.Progress(*columns, console=self._err, transient=True, disable=not self._err.is_terminal) as bars:
            yield Progress(bars, bars.add_task(what, total=bytes or rows, done=""), by_bytes=bool(bytes))

    def _table(self, table: Table) -> None:
        """Text is folded where the table is wider than the window, numbers never.

        The last columns are left out instead, and named.
        """
        from rich.table import Table as Grid
        from rich.text import Text

        cells = [[cell.translate(_ASCII) for cell in row] for row in table.cells]
        headings, shown = _fitting(table.columns, cells, self._out.width)
        grid = Grid(title=Text(table.title.translate(_ASCII)), title_justify="left")
        for heading, column in zip(headings[:shown], table.columns, strict=False):
            words = column.kind.words
            grid.add_column(Text(heading), justify="left" if words else "right", overflow="fold", no_wrap=not words)
        for row in cells:
            grid.add_row(*(Text(cell) for cell in row[:shown]))
        self._out.print(grid)
        if shown < len(table.columns):
            left_out = ", ".join(column.name for column in table.columns[shown:])
            self.say(f"Left out, as the window is narrow: {left_out}.")
        for note in table.notes:
            self.say(note.translate(_ASCII))


def _fitting(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> tuple[list[str], int]:
    """Headings, on several lines if one line is too wide, and how many columns fit."""
    whole = [column.heading for column in columns]
    for headings in (whole, [heading.replace(" ", "\n") for heading in whole]):
        lines = [[*heading.split("\n"), *(row[at] for row in cells)] for at, heading in enumerate(headings)]
        most = [max(map(len, some)) for some in lines]
        needed = [min(one, _FOLDED) if column.kind.words else one for one, column in zip(most, columns, strict=True)]
        ends = [sum(needed[: last + 1]) + 3 * (last + 1) + 1 for last in range(len(columns))]
        if ends and ends[-1] <= width:
            return headings, len(columns)
    return headings, min(max(sum(end <= width for end in ends), 1), len(columns))
