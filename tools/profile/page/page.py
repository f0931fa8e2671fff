"""The page of `freescale profile`: lengths, settings, stragglers, collisions, shared histories and simulated steps."""

from collections.abc import Iterator

from freescale_tools.collisions.page import collision_part
from freescale_tools.profile.page.length_sections import length_sections
from freescale_tools.profile.page.settings_section import settings_section
from freescale_tools.profile.page.sharing_section import ASSUMPTION, sharing_section
from freescale_tools.profile.page.straggler_figures import method_name
from freescale_tools.profile.page.straggler_sections import straggler_section
from freescale_tools.profile.page.tradeoff_section import tradeoff_section
from freescale_tools.report.assemble import Part, assembled
from freescale_tools.report.blocks import Document, Page, Tile
from freescale_tools.report.numbers import count, number, percent, percent_within, short, size
from freescale_tools.simulate.page.page import simulation_part

_STRAGGLER_ASSUMPTION = (
    "Stragglers: global batches are drawn row by row from the histogram of lengths; the time of a rank is "
    "the cost of its samples by the named cost model. Order in the files, and data that comes in similar "
    "stretches, is not in it."
)


def profile_page(document: Document) -> Page:
    """The page of a document of kind `profile`. Parts that are null or absent are left out."""
    return assembled(document, list(_parts(document)), title="What FreeScale would bring")


def _parts(document: Document) -> Iterator[Part]:
    grid, advice = document.get("stragglers"), document.get("recommended")
    sequences = document.get("sequences") or {}
    yield Part(
        facts=tuple(_facts(document)), tiles=tuple(_length_tiles(sequences)), skipped=document.get("skipped") or ()
    )
    if advice:
        yield Part(tiles=(_advice_tile(advice, grid),), sections=(settings_section(advice, grid),))
    if document.get("tradeoff"):
        yield Part(sections=(tradeoff_section(document["tradeoff"]),))
    yield Part(sections=tuple(length_sections(sequences, document.get("candidates") or {}, advice)))
    if grid:
        yield Part(sections=(straggler_section(grid),), assumptions=(_STRAGGLER_ASSUMPTION,))
    if document.get("collisions"):
        yield collision_part(document["collisions"], brief=bool(advice))
    if document.get("sharing"):
        yield Part(sections=(sharing_section(document["sharing"]),), assumptions=(ASSUMPTION,))
    if document.get("simulation"):
        ranks = grid["default"]["ranks"] if grid else None
        yield simulation_part(document["simulation"], usual_ranks=ranks, brief=bool(advice))


def _facts(document: Document) -> Iterator[tuple[str, str]]:
    for name, key in (("Files", "files"), ("Rows", "rows"), ("Row groups", "row_groups")):
        if document.get(key) is not None:
            yield name, count(document[key])
    if document.get("bytes") is not None:
        yield "Size on disk", size(document["bytes"])
    if stored := document.get("histories"):
        yield (
            "Histories",
            f"{count(stored['keys'])} stored once, {count(stored['events'])} events, by {short(stored['on'])}",
        )
    if document.get("mode"):
        yield "Read", "footers only (quick)" if document["mode"] == "quick" else "every length"


def _length_tiles(sequences: Document) -> Iterator[Tile]:
    for name, sequence in list(sequences.items())[:1]:
        longest = "" if sequence["max"] is None else f", {count(sequence['max'])} at most"
        yield Tile(
            name=f"Events in {short(name)}",
            value=_few_digits(sequence["events"]),
            note=f"{count(sequence['mean'])} in a mean history{longest}",
        )
        if sequence["top1_share"] is not None:
            yield Tile(
                name="Held by the longest 1\u00a0% of the rows",
                value=percent(sequence["top1_share"]),
                note="of all events: why ranks wait for each other",
            )


def _few_digits(events: int) -> str:
    """A tile has room for nine digits."""
    return count(events) if events < 1e9 else f"{number(events / 1e9)} billion"


def _advice_tile(advice: Document, grid: Document | None) -> Tile:
    default = grid["default"] if grid else None
    where = f", {count(default['ranks'])} ranks of {count(default['batch_size'])} samples" if default else ""
    unbalanced = percent_within(advice["straggler_none"], advice["straggler_none_error"])
    return Tile(
        name="Straggler share, balanced",
        value=percent_within(advice["straggler"], advice["straggler_error"]),
        note=f"instead of {unbalanced}; {method_name(advice['method'])}{where}",
    )
