"""Puts a page together from what each part of a document adds to it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from freescale_tools.report.blocks import Document, Page, Points, Section, Table, Tile, Tiles
from freescale_tools.report.glossary import glossary
from freescale_tools.report.numbers import count, many, short

MOST_SKIPPED = 200
_MOST_PATHS = 5
_EVERY_PAGE = "Shares and means are of the rows that could be read; empty and null histories count as rows."


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one part of a document adds to the page.

    Attributes:
        facts: names and values for the head of the page.
        tiles: key figures for the summary.
        sections: in the order of the page.
        assumptions: sentences for the last section.
        parameters: tables for the last section.
        skipped: files and row groups that this part of the document leaves out.
    """

    facts: Sequence[tuple[str, str]] = ()
    tiles: Sequence[Tile] = ()
    sections: Sequence[Section] = ()
    assumptions: Sequence[str] = ()
    parameters: Sequence[Table] = ()
    skipped: Sequence[Document] = ()


def assembled(document: Document, parts: Sequence[Part], *, title: str) -> Page:
    """The page of a document: head, summary, sections of all parts, skipped files, assumptions, terms."""
    facts = list(chain.from_iterable(part.facts for part in parts))
    if document.get("created"):
        facts.append(("Made", str(document["created"]).replace("T", " ").replace("+00:00", " UTC")))
    sections: list[Section] = []
    tiles = tuple(chain.from_iterable(part.tiles for part in parts))
    if tiles:
        sections.append(Section(id="summary", title="In short", blocks=(Tiles(tiles=tiles),)))
    sections += chain.from_iterable(part.sections for part in parts)
    skipped = list(chain.from_iterable(part.skipped for part in parts))
    if skipped:
        sections.append(_skipped_section(skipped))
    page = Page(
        title=title,
        subtitle=_subtitle(document),
        facts=tuple(facts),
        sections=(*sections, _assumptions_section(parts)),
    )
    terms = glossary(page)
    return replace(page, sections=(*page.sections, terms)) if terms else page


def _subtitle(document: Document) -> str:
    paths = document.get("paths")
    if not paths:
        return f"Of the profile {short(document['profile'])}" if document.get("profile") else ""
    named = ", ".join(short(path) for path in paths[:_MOST_PATHS])
    return named + (f" and {count(len(paths) - _MOST_PATHS)} more" if len(paths) > _MOST_PATHS else "")


def _skipped_section(skipped: Sequence[Document]) -> Section:
    rows = sum(one["rows"] or 0 for one in skipped)
    files = len({one["file"] for one in skipped})
    left = len(skipped) - MOST_SKIPPED
    return Section(
        id="skipped",
        title="Skipped",
        intro=f"{many(len(skipped), 'part')} of {many(files, 'file')} could not be read; {many(rows, 'row')} are known "
        "to be missing from the figures on this page.",
        blocks=(
            Table(
                title="Files and row groups that were left out",
                columns=("File", "Row group", "Reason", "Rows"),
                rows=[
                    (
                        short(one["file"]),
                        "all" if one["row_group"] is None else count(one["row_group"]),
                        short(one["reason"]),
                        count(one["rows"]),
                    )
                    for one in skipped[:MOST_SKIPPED]
                ],
                words=3,
                note=f"{count(left)} more are in the JSON document." if left > 0 else "",
            ),
        ),
    )


def _assumptions_section(parts: Sequence[Part]) -> Section:
    sentences = (_EVERY_PAGE, *chain.from_iterable(part.assumptions for part in parts))
    tables = chain.from_iterable(part.parameters for part in parts)
    return Section(
        id="assumptions",
        title="Assumptions",
        blocks=(Points(title="How the figures came about", sentences=sentences), *tables),
    )
