"""The page of `freescale collisions`, and what collisions add to the page of a profile."""

from collections.abc import Iterator

from freescale_tools.collisions.page_sections import bytes_sent, collision_section
from freescale_tools.report.assemble import Part, assembled
from freescale_tools.report.blocks import Document, Page, Tile
from freescale_tools.report.numbers import percent, short, size

_ASSUMPTION = (
    "Collisions: counted exactly on sampled pairs of consecutive global batches. Bytes: 8 for an id; embedding "
    "rows go once for each distinct row of a rank, their gradients once for each occurrence, 4 a value."
)


def collisions_page(document: Document) -> Page:
    """The page of a document of kind `collisions`."""
    parts = [collision_part(document["collisions"])]
    return assembled(document, parts, title="Collisions between consecutive batches")


def collision_part(collisions: Document, *, brief: bool = False) -> Part:
    """What collisions add to a page. A `brief` part has only the first tile."""
    return Part(
        facts=(("IDs", short(collisions["column"])),),
        tiles=tuple(_tiles(collisions, brief=brief)),
        sections=(collision_section(collisions),),
        assumptions=(_ASSUMPTION,),
        skipped=collisions.get("skipped") or (),
    )


def _tiles(collisions: Document, *, brief: bool) -> Iterator[Tile]:
    for point in [point for point in collisions["points"] if point["axis"] == "default"][:1]:
        yield Tile(
            name="Collisions, by occurrence",
            value=percent(point["by_occurrence"]["mean"]),
            note=f"P99 {percent(point['by_occurrence']['p99'])}; by distinct row {percent(point['by_row']['mean'])}",
        )
    total, of_collisions = bytes_sent(collisions)
    if total and not brief:
        yield Tile(
            name="Sent by a rank in a step",
            value=size(total),
            note=f"{size(of_collisions)} of it in collisions, which have to be waited for",
        )
