"""README and the pages of docs/ as the tests read them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block: `language`, `title` (or an empty text) and what stands in it."""

    language: str
    title: str
    text: str


def blocks(page: Path | str, language: str | None = None) -> list[Block]:
    """The fenced blocks of a page, of one language or of all, in order."""
    found = _FENCE.findall((ROOT / page).read_text())
    all_blocks = [Block(kind, re.sub(r'\s*title="(.*)"', r"\1", rest), text) for kind, rest, text in found]
    return [block for block in all_blocks if language in (None, block.language)]


def python(page: str) -> list[str]:
    return [block.text for block in blocks(page, "python")]


def prose(page: Path) -> str:
    """The page without its fenced blocks, which become empty lines."""
    return _FENCE.sub(lambda found: "\n" * found.group(0).count("\n"), page.read_text())


def commands(page: Path) -> Iterator[str]:
    """The shell commands of a page, one line each, without comments and without what they print."""
    for block in blocks(page):
        for line in block.text.splitlines():
            if block.language == "console" and not line.startswith("$ "):
                continue
            if block.language in ("bash", "console") and line:
                yield re.split(r"\s+#", line.removeprefix("$ "))[0]
