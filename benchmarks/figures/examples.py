"""What the examples of a page print, below each of them: `<!-- [[[cog examples.output() ]]] -->`.

The examples with such a comment run in the order of the page, in one temporary folder; those of Python share their
names, and a block with a title is written into the folder first. `<!-- [[[cog examples.given("histories") ]]] -->` at
the top of a page names the files and names that it uses, a function of `example_data`. Output may not depend on the
machine: `output` cuts off lines that hold times, or keeps all numbers as they were first measured.

Shell commands take minutes. So a page that shows the output of some is run by `make figures EXAMPLES=1`, and keeps what
it shows otherwise; a test of the long tier compares it with a run.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from figures import example_data

_BLOCK = re.compile(
    r'^```(?P<language>python|bash|console|toml)(?: title="(?P<title>[^"]*)")?\n(?P<text>.*?)^```\n'
    r"(?P<shown>\n<!-- \[\[\[cog\s+examples\.output\()?",
    re.DOTALL | re.MULTILINE,
)
_GIVEN = re.compile(r"\[\[\[cog examples\.given\((.*?)\)")
_ROOT = Path(__file__).parents[2]
_WIDTH = 100  # of a terminal, in columns
_LONGEST = 110  # line of a page


class Example(NamedTuple):
    """A fenced block: a file if it has a title; what it prints is shown by the comment of line `comment`, counted from
    1, and by none if that is 0."""

    language: str
    title: str
    text: str
    comment: int


def output(first: str = "", last: str = "", *, measured: bool = False, judged: tuple[str, ...] = ()) -> None:
    """The output of the example above, of its lines from the one that begins with `first` to that with `last`.

    `measured`: another run prints other numbers, so the page keeps those that it has if all else is the same, except
    for lines that begin with a text of `judged`, whose words depend on the numbers.
    """
    import cog  # cog makes this module while it fills a page

    page = Path(cog.inFile).read_text()
    shell = any(example.comment and example.language != "python" for example in examples(page))
    if shell and os.environ.get("EXAMPLES") != "1":
        print(cog.previous, end="")
        return
    lines = [line.rstrip() for line in outputs(page)[cog.firstLineNum].splitlines()]
    start = _line(lines, first, 0)
    end = _line(lines, last, start) if last else len(lines) - 1
    shown = [part for line in lines[start : end + 1] for part in _wrapped(line)]
    block = "\n".join(["\n```text", *shown, *["..."] * (end + 1 < len(lines)), "```\n"])
    print(cog.previous if measured and _words(block, judged) == _words(cog.previous, judged) else block, end="")


def _words(text: str, judged: tuple[str, ...]) -> list[str]:
    """All numbers alike, without the lines that begin with a text of `judged` and those that they are wrapped into."""
    for begin in judged:
        text = re.sub(rf"^{re.escape(begin)}.*\n(?: .*\n)*", "", text, flags=re.MULTILINE)
    return re.sub(r"\d[\d.,]*", "0", text).split()


def _wrapped(line: str) -> list[str]:
    indent = len(line) - len(line.lstrip()) + 2
    return textwrap.wrap(line, _LONGEST, subsequent_indent=indent * " ") if len(line) > _LONGEST else [line]


def _line(lines: list[str], begin: str, start: int) -> int:
    """The first line from `start` on that begins so."""
    for at, line in enumerate(lines[start:], start):
        if line.startswith(begin):
            return at
    raise ValueError(f"no line of the output begins with {begin!r}, so it cannot be cut there:\n" + "\n".join(lines))


def given(*names: str) -> None:
    """Prints nothing: `outputs` looks for its comment, and calls these functions of `example_data` before it runs any
    example."""
    for name in names:
        getattr(example_data, name)


def examples(page: str) -> Iterator[Example]:
    for found in _BLOCK.finditer(page):
        comment = page.count("\n", 0, found.end()) + 1 if found["shown"] else 0
        yield Example(found["language"], found["title"] or "", found["text"], comment)


@cache
def outputs(page: str) -> dict[int, str]:
    """By the line of each comment of a page: what the example above it printed."""
    printed: dict[int, str] = {}
    names: dict[str, Any] = {"__name__": "example"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.ExitStack() as stack:
        for function in re.findall(r'"(\w+)"', " ".join(_GIVEN.findall(page))):
            if made := getattr(example_data, function)():
                names |= stack.enter_context(made)
        for example in examples(page):
            if example.title:
                Path(example.title).write_text(example.text)
            if example.comment:
                run = _python if example.language == "python" else _shell
                printed[example.comment] = run(example.text, names)
    return printed


def _python(text: str, names: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(text, names)
    return printed.getvalue()


def _shell(text: str, names: dict[str, Any]) -> str:
    """Commands of the environment that this program runs in, with the packages of this tree."""
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        "COLUMNS": str(_WIDTH),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(["bash", "-ec", text], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode} of\n{text}\n{done.stderr}")
    return done.stdout
