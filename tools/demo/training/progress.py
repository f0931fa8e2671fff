"""Shows how far the demo is: bars on a terminal, a few lines in a log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

Progress = Callable[[str, int], None]  # name of the run, steps done
_LOG_LINES = 2  # per run, if there is no terminal


@contextmanager
def progress_of(steps: int, *, shown: bool) -> Iterator[Progress]:
    """A function to call after every step. It does nothing unless `shown`."""
    console = Console()
    if not shown:
        yield lambda name, done: None
    elif console.is_terminal:
        with _bars(console) as bars:
            yield _on_terminal(bars, steps)
    else:
        yield _in_log(console, steps)


def _bars(console: Console) -> RichProgress:
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
    )
    return RichProgress(*columns, console=console)


def _on_terminal(bars: RichProgress, steps: int) -> Progress:
    tasks: dict[str, TaskID] = {}

    def show(name: str, done: int) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=steps)
        bars.update(tasks[name], completed=done)

    return show


def _in_log(console: Console, steps: int) -> Progress:
    every = max(steps // _LOG_LINES, 1)

    def show(name: str, done: int) -> None:
        if done % every == 0 or done == steps:
            console.print(f"{name:<12} {done:>4} / {steps} steps", highlight=False)

    return show
