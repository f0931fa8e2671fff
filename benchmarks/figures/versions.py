"""The versions that the project was tried on."""

import datetime
from collections import Counter
from typing import Any

from figures.records import listed, percent, record, table

KINDS = ("EmbeddingCollection", "EmbeddingBagCollection", "MCH", "MPZCH")
_WIDE = 100  # signs of a reason


def tried() -> None:
    """A row of the table for each row of `make matrix`."""
    table(
        [
            *("row", "torch", "fbgemm", "torchrec", "Python"),
            *(f"`{kind}`" if "Collection" in kind else kind for kind in KINDS),
            *("ids served in programs", "tests that pass", "tried on"),
        ],
        [_cells(row) for row in record("matrix").rows],
    )


def _cells(row: dict[str, Any]) -> list[str]:
    asked = [row[key] for key in ("row", "torch", "fbgemm", "torchrec", "python")]
    day = datetime.datetime.fromisoformat(row["date"])
    date = f"{day.day} {day:%B %Y}"
    if row["problem"]:
        return [*asked, *["not installable"] * len(KINDS), "", "", date]
    kinds = [row["served"].get(kind, "").partition(":")[0] for kind in KINDS]
    shares = [share for check in row["checks"].values() for share in check["ids"]]
    passed = sum(check["passed"] for check in row["checks"].values())
    tests = passed + sum(len(check["failed"]) for check in row["checks"].values())
    return [*asked, *kinds, percent(min(shares)) if shares else "", f"{passed:,} of {tests:,}", date]


def reasons() -> None:
    """Why a row is not installable, why modules run plainly, which tests fail."""
    lines = [f"**{row['row']}**: {reason}" for row in record("matrix").rows for reason in _reasons(row)]
    listed(lines or ["All modules are served, and all tests pass."])


def _reasons(row: dict[str, Any]) -> list[str]:
    if row["problem"]:
        return [f"not installable: {_quoted(row['problem'])}."]
    said = [f"`{kind}` {_quoted(how)}." for kind, how in row["served"].items() if how != "served"]
    failed = {name: why for check in row["checks"].values() for name, why in check["failed"].items()}
    files = Counter(name.partition("::")[0] for name in failed)
    first = {name.partition("::")[0]: why for name, why in reversed(failed.items())}
    return said + [f"{count} failed in `{file}`, with {_quoted(first[file])}." for file, count in files.items()]


def _quoted(text: str) -> str:
    """As it is, whatever signs of Markdown are in it; in one line of a page, which has no place for more."""
    text = text.replace("`", "")
    return f"`{text if len(text) <= _WIDE else text[: _WIDE - 4] + ' ...'}`"
