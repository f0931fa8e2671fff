"""The page of `freescale simulate`, and what the simulation adds to the page of a profile."""

from collections.abc import Iterator

from freescale_tools.report.assemble import Part, assembled
from freescale_tools.report.blocks import Document, Page, Section, Tile
from freescale_tools.report.numbers import count, milliseconds, short, signed
from freescale_tools.simulate.page_sections import (
    ALL,
    PIPELINE,
    enough_rows,
    parameters,
    step_section,
    validation_section,
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
    sections: list[Section] = [step_section(simulation, usual_ranks)]
    if simulation.get("validation"):
        sections.append(validation_section(simulation["validation"]))
    return Part(
        facts=(("Hardware", short(simulation["hardware"]["name"])),),
        tiles=tuple(_tiles(simulation, brief=brief)),
        sections=sections,
        assumptions=(_ASSUMPTION,),
        parameters=(parameters(simulation),),
    )


def _tiles(simulation: Document, *, brief: bool) -> Iterator[Tile]:
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
