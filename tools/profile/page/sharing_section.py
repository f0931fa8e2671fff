"""The section about histories that samples of a batch share: events held, bytes and time saved."""

from collections.abc import Iterator, Sequence

from freescale_tools.profile.page.sharing_figures import held_share
from freescale_tools.report.blocks import Block, Document, Plot, Section, Table
from freescale_tools.report.numbers import count, milliseconds, percent, short, size

ASSUMPTION = (
    "Sharing: in sampled global batches, an event that several samples of a rank see counts once. Bytes saved leave "
    "a rank: 8 for an id, 4 a value for embedding rows and for gradients. Where equal ids are looked up once anyway "
    "(fscomm), rows are not saved. In a step, shared events are read, moved, looked up, sent and updated once; the "
    "model computes as before."
)


def sharing_section(sharing: Document) -> Section:
    return Section(
        id="sharing",
        title="Histories that samples share",
        intro=f"What Sequence(share={short(sharing['share'])!r}) saves: a batch holds events once that several of its "
        f"samples see. With {count(sharing['ranks'])} ranks and histories of at most {count(sharing['max_length'])} "
        "events.",
        blocks=(*_plots(sharing["points"]), _table(sharing["points"])),
    )


def _plots(points: Sequence[Document]) -> Iterator[Block]:
    for balanced, where in ((False, "without balancing"), (True, "balanced")):
        own = [point for point in points if point["balanced"] == balanced]
        if own:
            best = min(own, key=lambda point: point["ratio"])
            yield Plot(
                title=f"Events held (%) by batch size, {where}",
                aid=f"In {best['order']} order, batches of {count(best['batch_size'])} samples hold "
                f"{percent(best['ratio'])} of the events that they hold without sharing.",
                figure=held_share(own),
                height=320,
                half=True,
            )


def _table(points: Sequence[Document]) -> Table:
    return Table(
        title="By rank and step",
        columns=(
            "Order",
            "Balanced",
            "Samples",
            "Events",
            "Held",
            "Ids saved",
            "Rows saved",
            "Gradients saved",
            "Straggler",
            "Step",
            "Step, shared",
        ),
        rows=[
            (
                point["order"],
                "yes" if point["balanced"] else "no",
                count(point["batch_size"]),
                count(round(point["events"])),
                percent(point["ratio"]),
                *(size(point["bytes_saved"][kind]) for kind in ("ids", "rows", "gradients")),
                percent(point["straggler_shared"]),
                *(milliseconds(point[key]) for key in ("step_ms", "step_ms_shared")),
            )
            for point in points
        ],
        words=2,
        folded=True,
    )
