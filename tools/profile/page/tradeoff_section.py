"""The section of the trade-off table: what other batch sizes and lengths cost."""

from freescale_tools.profile.page.straggler_figures import method_name
from freescale_tools.profile.tradeoff import tradeoff_notes
from freescale_tools.report.blocks import Document, Section, Table
from freescale_tools.report.numbers import count, number, percent, percent_within, size


def tradeoff_section(found: Document) -> Section:
    money, counted = found["gpu_hour_price"] is not None, found["collisions_max_length"] is not None
    table = Table(
        title="Trade-off table",
        columns=(
            "Samples",
            "Longest history",
            "Straggler share",
            "Events lost",
            "Memory of the fullest rank",
            *(("Collisions",) if counted else ()),
            "Steps an epoch",
            "GPU-hours an epoch",
            *(("Money an epoch",) if money else ()),
        ),
        rows=[
            (
                count(point["batch_size"]),
                count(point["max_length"]),
                percent_within(point["straggler"], point["straggler_error"]),
                percent(point["events_lost"]),
                size(point["bytes"]),
                *((percent(point["collisions"]),) if counted else ()),
                count(point["steps"]),
                number(point["gpu_hours"]),
                *((number(point["money"]),) if money else ()),
            )
            for point in found["points"]
        ],
        words=0,
        note=" ".join(tradeoff_notes(found)),
    )
    return Section(
        id="tradeoff",
        title="What batch size and longest history cost",
        intro=f"{count(found['ranks'])} ranks, balanced by {method_name(found['method'])}. The last length of every "
        "batch size is that of no cut.",
        blocks=(table,),
    )
