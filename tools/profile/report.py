"""The report of `freescale profile`: the verdict, what settings cost, lengths, and what the other commands add.

`lengths` and `stragglers` make the sections of their own; collisions and steps come from their commands.
"""

from collections.abc import Iterator, Sequence

from freescale_tools.collisions import report as of_collisions
from freescale_tools.model import report as of_steps
from freescale_tools.profile.length_report import length_sections
from freescale_tools.profile.straggler_report import method_name, straggler_section
from freescale_tools.profile.tradeoff import tradeoff_notes
from freescale_tools.report import plots
from freescale_tools.report.blocks import (
    Block,
    Code,
    Column,
    Document,
    Look,
    Plot,
    Points,
    Report,
    Section,
    Table,
    Tile,
    Tiles,
    of_pair,
)  # fmt: skip
from freescale_tools.report.closing import closed
from freescale_tools.report.numbers import (
    BYTES,
    COUNT,
    MS,
    NUMBER,
    SHARE,
    TEXT,
    cost,
    count,
    number,
    percent,
    short,
    size,
)  # fmt: skip
from freescale_tools.report.plots import Axis

_STRAGGLERS = (
    "Stragglers: global batches are drawn row by row from the histogram of lengths, as shuffle=True draws them; the "
    "time of a rank is the cost of its samples by the named cost model. Order in the files, and data that comes in "
    "similar stretches, is not in it."
)
_SHARING = (
    "Sharing: in sampled global batches, an event that several samples of a rank see counts once. Bytes saved leave "
    "a rank: 8 for an id, 4 a value for embedding rows and for gradients. Where equal ids are looked up once anyway "
    "(fscomm), rows are not saved. In a step, shared events are read, moved, looked up, sent and updated once; the "
    "model computes as before. Steps are those of TorchRec's pipeline, balanced ones those of all of FreeScale."
)
_ORDER_COLORS = {"file": plots.BLUE, "shuffled": plots.RED, "time": plots.GREEN}


def profile_report(document: Document) -> Report:
    """The report of a document of kind `profile`. Parts that are null or absent are left out."""
    grid, collisions, sharing, simulation = (
        document.get(part) for part in ("stragglers", "collisions", "sharing", "simulation")
    )
    assumptions = {
        _STRAGGLERS: grid, of_collisions.ASSUMPTION: collisions, _SHARING: sharing, of_steps.ASSUMPTION: simulation,
    }  # fmt: skip
    return closed(
        document,
        title="What FreeScale would bring",
        facts=list(_facts(document)),
        sections=list(_sections(document)),
        assumptions=[said for said, part in assumptions.items() if part],
        parameters=[of_steps.parameters(simulation, on_terminal=False)] if simulation else [],
        skipped=[*(document.get("skipped") or ()), *((collisions or {}).get("skipped") or ())],
    )


def _facts(document: Document) -> Iterator[tuple[str, str]]:
    for name, key in (("Files", "files"), ("Row groups", "row_groups"), ("Rows", "rows")):
        yield name, count(document[key])
    yield "Size on disk", size(document["bytes"])
    if stored := document.get("histories"):
        stored_once = f"{count(stored['keys'])} stored once, {count(stored['events'])} events, {size(stored['bytes'])}"
        yield "Histories", f"{stored_once}, by {short(stored['on'])}, as of {short(stored['time'])}"
    yield "Read", "footers only (quick)" if document["mode"] == "quick" else "every length"


def _sections(document: Document) -> Iterator[Section]:
    simulation, advice, grid = (document.get(part) for part in ("simulation", "recommended", "stragglers"))
    tiles = tuple(_tiles(document))
    if simulation:
        yield of_steps.verdict_section(simulation, tiles=tiles)
    else:
        yield Section(id="summary", title="In short", blocks=(Tiles(tiles=tiles),))
    if document.get("tradeoff"):
        yield _tradeoff_section(document["tradeoff"])
    if advice and grid:
        yield _settings_section(advice, grid["default"])
    yield from length_sections(document["sequences"], document.get("candidates") or {}, advice)
    if grid:
        yield straggler_section(grid)
    if document.get("collisions"):
        yield of_collisions.collision_section(document["collisions"], brief=True)
    if document.get("sharing"):
        yield _sharing_section(document["sharing"])
    if simulation:
        yield of_steps.step_section(simulation, brief=True)


def _tiles(document: Document) -> Iterator[Tile]:
    advice = document.get("recommended")
    if advice:
        default = document["stragglers"]["default"]
        unbalanced = percent(advice["straggler_none"], advice["straggler_none_error"])
        yield Tile(
            name="Straggler share, balanced",
            value=percent(advice["straggler"], advice["straggler_error"]),
            note=f"instead of {unbalanced}; {method_name(advice['method'])}, {_where(default)}",
        )
    if document.get("collisions") and (tile := of_collisions.collision_tile(document["collisions"])):
        yield tile
    for name, sequence in list(document["sequences"].items())[:1]:
        events = sequence["events"]
        longest = "" if sequence["max"] is None else f", {count(sequence['max'])} at most"
        yield Tile(
            name=f"Events in {short(name)}",
            value=count(events) if events < 1e9 else f"{number(events / 1e9)} billion",  # room for nine digits
            note=f"{count(sequence['mean'])} in a mean history{longest}",
        )
        if sequence["top1_share"] is not None:
            yield Tile(
                name="Held by the longest 1\u00a0% of the rows",
                value=percent(sequence["top1_share"]),
                note="of all events: why ranks wait for each other",
            )


def _where(default: Document) -> str:
    return f"{count(default['ranks'])} ranks of {count(default['batch_size'])} samples"


def _tradeoff_section(found: Document) -> Section:
    """What other batch sizes and lengths cost."""
    money, counted = found["gpu_hour_price"] is not None, found["collisions_max_length"] is not None
    table = Table(
        title="Trade-off table",
        columns=(
            Column("samples", COUNT, "batch_size"),
            Column("longest history", COUNT, "max_length"),
            Column("straggler share", SHARE, "straggler", error="straggler_error"),
            Column("events lost", SHARE, "events_lost"),
            *([Column("collisions", SHARE, "collisions")] if counted else []),
            Column("steps", COUNT, "steps"),
            Column("GPU-hours", NUMBER, "gpu_hours"),
            *([Column("money", NUMBER, "money")] if money else []),
            Column("memory", BYTES, "bytes"),
        ),
        rows=found["points"],
        notes=tradeoff_notes(found),
    )
    return Section(
        id="tradeoff",
        title="What batch size and longest history cost",
        intro=f"{count(found['ranks'])} ranks, balanced by {method_name(found['method'])}. The last length of every "
        "batch size is that of no cut.",
        blocks=(table,),
    )


def _settings_section(advice: Document, default: Document) -> Section:
    """Code to paste, what the settings cost, and why they were chosen."""
    unbalanced = percent(advice["straggler_none"], advice["straggler_none_error"])
    rows = [
        ("max_length, longest history kept", f"{count(advice['max_length'])} events"),
        ("events cut off", percent(advice["events_cut"])),
        ("method", method_name(advice["method"])),
        ("cost of a sample of length L", cost(advice["cost_model"])),
        ("max_tokens, most tokens of a rank", count(advice["max_tokens"])),
        ("straggler share with them", percent(advice["straggler"], advice["straggler_error"])),
        ("straggler share without balancing", unbalanced),
        ("lower bound of plans with equal counts", percent(advice["lower_bound"])),
    ]
    return Section(
        id="settings",
        title="Recommended settings",
        intro=f"Settings to begin with for {_where(default)}.",
        blocks=(
            Code(title="To paste", text=advice["code"]),
            Table(
                title="What they are and what they cost",
                columns=(Column("setting", TEXT, 0), Column("value", TEXT, 1)),
                rows=rows,
            ),
            Points(title="Why", sentences=advice["why"]),
        ),
    )


def _sharing_section(found: Document) -> Section:
    """Events held, bytes and time saved where samples of a batch share their histories."""
    table = Table(
        title="By rank and step",
        columns=(
            Column("order", TEXT, "order"),
            Column("balanced", TEXT, lambda one: "yes" if one["balanced"] else "no"),
            Column("samples", COUNT, "batch_size"),
            Column("events", COUNT, lambda one: round(one["events"])),
            Column("held", SHARE, "ratio"),
            Column("straggler", SHARE, "straggler_shared"),
            Column("step", MS, "step_ms"),
            Column("step, shared", MS, "step_ms_shared"),
            *(Column(f"{kind} saved", BYTES, f"bytes_saved.{kind}") for kind in ("ids", "rows", "gradients")),
        ),
        rows=found["points"],
        notes=[
            "events: of the samples of a rank; held: of these, with windows of a history merged. balanced: Balance "
            f"keeps samples of one history on one rank. Steps are simulated on {short(found['hardware'])}. An event "
            f"has {8 * found['fields']} bytes of ids, {4 * found['dim']} of rows and as many of gradients."
        ],
    )
    return Section(
        id="sharing",
        title="Histories that samples share",
        intro=f"What Sequence(share={short(found['share'])!r}) saves: a batch holds events once that several of its "
        f"samples see. With {count(found['ranks'])} ranks and histories of at most {count(found['max_length'])} "
        "events.",
        blocks=(*_sharing_plots(found["points"]), table),
    )


def _sharing_plots(points: Sequence[Document]) -> Iterator[Block]:
    for balanced, where in ((False, "without balancing"), (True, "balanced")):
        own = [one for one in points if one["balanced"] == balanced]
        if not own:
            continue
        best = min(own, key=lambda one: one["ratio"])
        held = {(one["batch_size"], one["order"]): one["ratio"] for one in own}
        columns = [
            Column(f"{order} order", SHARE, of_pair(held, order), look=Look(color=color, symbol=symbol))
            for (order, color), symbol in zip(_ORDER_COLORS.items(), plots.SYMBOLS, strict=False)
        ]
        yield Plot(
            title=f"Events held (%) by batch size, {where}",
            aid=f"In {best['order']} order, batches of {count(best['batch_size'])} samples hold "
            f"{percent(best['ratio'])} of the events that they hold without sharing.",
            figure=plots.lines(
                sorted({batch_size for batch_size, _ in held}),
                Column("samples", COUNT, lambda batch_size: batch_size),
                columns,
                x=Axis("samples of a rank and step", "measured"),
                y=Axis("events held, of those without sharing (%)"),
            ),
            height=320,
            half=True,
        )
