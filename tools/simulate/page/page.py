"""The page of `freescale simulate`, and what the simulation adds to the page of a profile."""

from collections.abc import Iterator

from freescale_tools.model.verdict import REMEDIES
from freescale_tools.report.assemble import Part, assembled
from freescale_tools.report.blocks import Document, Page, Tile
from freescale_tools.report.numbers import count, milliseconds, short, signed
from freescale_tools.simulate.page.step_sections import (
    ALL,
    PIPELINE,
    enough_rows,
    parameters,
    span,
    step_section,
)

_ASSUMPTION = (
    "Steps: the slowest rank is scheduled, task by task, until its steps repeat; bubbles are those of the mean "
    "rank, which computes as much less as the straggler share says and waits the rest."
)


def simulation_page(document: Document) -> Page:
    """The page of a document of kind `simulate`."""
    return assembled(document, [simulation_part(document["simulation"])], title="Simulated training steps")


def simulation_part(simulation: Document, *, usual_ranks: int | None = None, brief: bool = False) -> Part:
    """What the simulation adds to a page.

    `usual_ranks`: the number of ranks that the bubbles and the timeline are shown for. A `brief` part has
    only the tile of the gain.
    """
    return Part(
        facts=(("Hardware", short(simulation["hardware"]["name"])),),
        tiles=tuple(_tiles(simulation, brief=brief)),
        sections=[step_section(simulation, usual_ranks)],
        assumptions=(_ASSUMPTION,),
        parameters=(parameters(simulation),),
    )


def _tiles(simulation: Document, *, brief: bool) -> Iterator[Tile]:
    """At the ranks of the verdict."""
    verdict, over = simulation["verdict"], simulation["over"]
    ranks, found = verdict["ranks"], verdict["gains"]["all"]
    if simulation["carried"]["ranks"] is None:
        yield Tile(name="QPS gain", value="not known", note=enough_rows(simulation))
    else:
        note = f"{span(found)}: all remedies over {PIPELINE}, simulated"
        yield Tile(name=f"QPS gain at {count(ranks)} ranks", value=signed(found["value"]), note=note)
    for key in ("balance", "prioritized", "sm_free"):
        name, below = REMEDIES[key]
        found = verdict["gains"][key]
        said = {"yes": "pays", "no": "does not pay", "unsure": "may pay", "little": "little to win"}[
            verdict["pays"][key]
        ]
        yield Tile(name=f"{name[0].upper()}{name[1:]}", value=said, note=f"{span(found)} over {below}, simulated")
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
