"""From a document to what the page shows: its head, and the sections for the parts that are there."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from freescale_tools.collisions.page_sections import bytes_sent, collision_section
from freescale_tools.profile.page.length_sections import length_sections
from freescale_tools.profile.page.straggler_figures import method_name
from freescale_tools.profile.page.straggler_sections import straggler_section
from freescale_tools.report.blocks import Code, Page, Points, Section, Table, Tile, Tiles
from freescale_tools.report.numbers import cost, count, many, milliseconds, percent, short, signed, size
from freescale_tools.simulate.page_sections import (
    ALL,
    PIPELINE,
    assumptions,
    enough_rows,
    step_section,
    validation_section,
)

Document = Mapping[str, Any]

MOST_SKIPPED = 200
_MOST_PATHS = 5
_TITLES = {
    "profile": "What FreeScale would bring",
    "collisions": "Collisions between consecutive batches",
    "simulate": "Simulated training steps",
}


def page_of(document: Document) -> Page:
    """The page of a profile, collisions or simulate document. Raises ValueError for any other."""
    kind = document.get("kind")
    if kind not in _TITLES:
        raise ValueError(f"kind {kind!r}: a page is made of a document of kind {', '.join(_TITLES)}")
    return Page(
        title=_TITLES[kind],
        subtitle=_subtitle(document),
        facts=tuple(_facts(document)),
        sections=tuple(_sections(document)),
    )


def _sections(document: Document) -> Iterator[Section]:
    grid, collisions, simulation = (document.get(key) for key in ("stragglers", "collisions", "simulation"))
    advice = document.get("recommended")
    tiles = tuple(_tiles(document))
    if tiles:
        yield Section(id="summary", title="In short", blocks=(Tiles(tiles=tiles),))
    if advice:
        yield _settings_section(advice, grid)
    yield from length_sections(document.get("sequences") or {}, document.get("candidates") or {}, advice)
    if grid:
        yield straggler_section(grid)
    if collisions:
        yield collision_section(collisions)
    if simulation:
        yield step_section(simulation, grid)
        if simulation.get("validation"):
            yield validation_section(simulation["validation"])
    skipped = [*(document.get("skipped") or ()), *((collisions or {}).get("skipped") or ())]
    if skipped:
        yield _skipped_section(skipped)
    yield assumptions(grid, collisions, simulation)


def _subtitle(document: Document) -> str:
    paths = document.get("paths")
    if not paths:
        return f"Of the profile {short(document['profile'])}" if document.get("profile") else ""
    named = ", ".join(short(path) for path in paths[:_MOST_PATHS])
    return named + (f" and {count(len(paths) - _MOST_PATHS)} more" if len(paths) > _MOST_PATHS else "")


def _facts(document: Document) -> Iterator[tuple[str, str]]:
    for name, key in (("Files", "files"), ("Rows", "rows"), ("Row groups", "row_groups")):
        if document.get(key) is not None:
            yield name, count(document[key])
    if document.get("bytes") is not None:
        yield "Size on disk", size(document["bytes"])
    if document.get("mode"):
        yield "Read", "footers only (quick)" if document["mode"] == "quick" else "every length"
    if document.get("collisions"):
        yield "IDs", short(document["collisions"]["column"])
    if document.get("simulation"):
        yield "Hardware", short(document["simulation"]["hardware"]["name"])
    if document.get("created"):
        yield "Made", str(document["created"]).replace("T", " ").replace("+00:00", " UTC")


def _tiles(document: Document) -> Iterator[Tile]:
    for name, sequence in list((document.get("sequences") or {}).items())[:1]:
        longest = "" if sequence["max"] is None else f", {count(sequence['max'])} at most"
        yield Tile(
            name=f"Events in {short(name)}",
            value=count(sequence["events"]),
            note=f"{count(sequence['mean'])} in a mean history{longest}",
        )
        if sequence["top1_share"] is not None:
            yield Tile(
                name="Held by the longest 1\u00a0% of the rows",
                value=percent(sequence["top1_share"]),
                note="of all events: why ranks wait for each other",
            )
    advice, grid = document.get("recommended"), document.get("stragglers")
    if advice:
        default = grid["default"] if grid else None
        where = f", {count(default['ranks'])} ranks of {count(default['batch_size'])} samples" if default else ""
        yield Tile(
            name="Straggler share, balanced",
            value=percent(advice["straggler"]),
            note=f"instead of {percent(advice['straggler_none'])}; {method_name(advice['method'])}{where}",
        )
    if document.get("collisions"):
        yield from _collision_tiles(document["collisions"], brief=bool(advice))
    if document.get("simulation"):
        yield from _step_tiles(document["simulation"], brief=bool(advice))


def _collision_tiles(collisions: Document, *, brief: bool) -> Iterator[Tile]:
    for point in [point for point in collisions["points"] if point["axis"] == "default"][:1]:
        yield Tile(
            name="Collisions, by occurrence",
            value=percent(point["by_occurrence"]["mean"]),
            note=f"P99 {percent(point['by_occurrence']['p99'])}; by distinct row {percent(point['by_row']['mean'])}",
        )
    total, urgent = bytes_sent(collisions)
    if total and not brief:
        yield Tile(
            name="Sent by a rank in a step",
            value=size(total),
            note=f"{size(urgent)} of it in collisions, which have to be waited for",
        )


def _step_tiles(simulation: Document, *, brief: bool) -> Iterator[Tile]:
    """At the largest number of ranks that the rows are enough for; beyond it the data says nothing."""
    ranks, over = simulation["carried"]["ranks"], simulation["over"]
    gain = {point["ranks"]: point["qps_gain"] for point in simulation["gain"]}.get(ranks)
    if gain is not None:
        note = f"all remedies over {PIPELINE}, simulated"
        yield Tile(name=f"QPS gain at {count(ranks)} ranks", value=signed(gain), note=note)
    elif ranks is None:
        yield Tile(name="QPS gain", value="not known", note=enough_rows(simulation))
    if brief:
        return
    at = {point["way"]: point for point in simulation["points"] if point["ranks"] == ranks}
    if not {over, ALL} <= at.keys():
        return
    for name, key in (("Step", "step_ms"), ("Exposed communication", "exposed_ms"), ("Straggler", "straggler_ms")):
        before, after = ({**at[way]["bubbles"], "step_ms": at[way]["step_ms"]}[key] for way in (over, ALL))
        yield Tile(
            name=f"{name} at {count(ranks)} ranks",
            value=milliseconds(after),
            note=f"instead of {milliseconds(before)} with {PIPELINE}",
        )


def _settings_section(advice: Document, grid: Document | None) -> Section:
    default = grid["default"] if grid else {}
    rows = [
        ("Longest history kept (max_length)", f"{count(advice['max_length'])} events"),
        ("Events cut off", percent(advice["events_cut"])),
        ("Method", method_name(advice["method"])),
        ("Cost of a sample of length L", cost(advice["cost_model"])),
        ("Most tokens of a rank (max_tokens)", count(advice["max_tokens"])),
        ("Straggler share with it", percent(advice["straggler"])),
        ("Straggler share without balancing", percent(advice["straggler_none"])),
        ("Lower bound of any plan with equal counts", percent(advice["lower_bound"])),
    ]
    where = f" for {count(default['ranks'])} ranks of {count(default['batch_size'])} samples" if default else ""
    return Section(
        id="settings",
        title="Recommended settings",
        intro=f"Settings to begin with{where}.",
        blocks=(
            Code(title="To paste", text=advice["code"]),
            Table(title="What they are and what they cost", columns=("Setting", "Value"), rows=rows, words=2),
            Points(title="Why", sentences=tuple(advice["why"])),
        ),
    )


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
