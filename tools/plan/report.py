"""What `freescale plan` shows of its document: tables, ranks and steps."""

from collections.abc import Iterator

from freescale_tools.report.blocks import Block, Column, Document, Table
from freescale_tools.report.numbers import BYTES, COUNT, MS, TEXT, milliseconds, percent, signed

_NAMES = {"chosen": "this plan", "torchrec": "TorchRec's default"}
_OVER = {"memory_ms": "look-ups", "sent_bytes": "bytes sent", "memory_bytes": "memory"}
_SHOWN_RANKS = 16


def plan_blocks(document: Document) -> Iterator[Block]:
    ranks, balance = document["ranks"], document["balance"]
    yield Table(
        title=f"Plan for {ranks} ranks, {document['hardware']}, {document['way']} steps of {document['batch_size']} "
        "samples",
        columns=(
            Column("table", TEXT, "table"),
            Column("module", TEXT, "module"),
            Column("sharding", TEXT, lambda one: one["sharding"].replace("_", "-")),
            Column(
                "ranks", TEXT, lambda one: "all" if len(one["ranks"]) == ranks else ", ".join(map(str, one["ranks"]))
            ),
            Column("size", BYTES, "bytes"),
            Column("look-up", MS, "lookup_ms"),
            Column("exchange", MS, "communication_ms"),
            Column("alone", MS, "plain_ms"),
            Column("overlapped", MS, "overlapped_ms"),
        ),
        rows=document["placed"],
        notes=[
            "Milliseconds of a step with this table alone. overlapped: what is left with prioritized communication "
            "behind enough compute."
        ],
    )
    over = {
        name: ", ".join(f"{said} {signed(of['over_mean'][key])}" for key, said in _OVER.items())
        for name, of in balance.items()
    }
    yield Table(
        title="Ranks",
        columns=(
            Column("rank", COUNT, lambda rank: rank),
            Column("look-ups and updates", MS, balance["chosen"]["memory_ms"].__getitem__),
            Column("sent", BYTES, balance["chosen"]["sent_bytes"].__getitem__),
            Column("received", BYTES, balance["chosen"]["received_bytes"].__getitem__),
            Column("held", BYTES, balance["chosen"]["memory_bytes"].__getitem__),
        ),
        rows=range(min(ranks, _SHOWN_RANKS)),
        notes=[
            *([f"Ranks {_SHOWN_RANKS} to {ranks - 1} are in the document (--json)."] if ranks > _SHOWN_RANKS else []),
            *(f"Busiest rank over the mean, {_NAMES[name]}: {said}." for name, said in over.items()),
        ],
    )
    parts = {"ids": "ids", "lookup": "look-up", "rows": "rows", "gradients": "gradients", "apply": "update"}
    yield Table(
        title="Steps",
        columns=(
            Column("way", TEXT, "way"),
            Column("plan", TEXT, lambda one: _NAMES[one["plan"]]),
            Column("step", MS, "step_ms"),
            Column("exposed", MS, "exposed_ms"),
            *(Column(name, MS, f"{part}_ms") for part, name in parts.items()),
            Column("all-reduce", MS, "all_reduce_ms"),
        ),
        rows=document["steps"],
        notes=[
            f"{milliseconds(document['compute_ms'])} of compute; {percent(document['collision'])} of the events "
            "collide, of which prioritized communication exposes the rows. sparse dist: only ID exchanges ahead, as "
            "TorchRec does."
        ],
    )
