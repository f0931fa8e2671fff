"""What `freescale plan` says of plans: the document with tables, ranks and steps, and what is shown of it. Pure.

The model's compute, the share of collisions and of rows that a rank uses twice come from the profile and the
calibration, as `freescale profile` reads them.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from freescale_tools.model.durations import compute, work
from freescale_tools.model.hardware import Hardware
from freescale_tools.model.step import BY_NAME, Moves, timeline
from freescale_tools.model.workload import Workload
from freescale_tools.plan.costs import PRIORITIZED, SHOWN, Parts, Placed, Setting, by_rank, parts, rated
from freescale_tools.report.blocks import Block, Column, Document, Table
from freescale_tools.report.numbers import BYTES, COUNT, MS, TEXT, milliseconds, percent, signed

_NAMES = {"chosen": "this plan", "torchrec": "TorchRec's default"}
_OVER = {"memory_ms": "look-ups", "sent_bytes": "bytes sent", "memory_bytes": "memory"}
_SHOWN_RANKS = 16


def document(plans: Mapping[str, Sequence[Placed]], setting: Setting, workload: Workload) -> dict[str, Any]:
    """{compute_ms, collision, placed, balance, steps}; `plans` are `chosen` and `torchrec`. Milliseconds and bytes.

    `placed`: each table as if it were alone; `overlapped_ms` is what prioritized communication leaves of it beside
    compute that is long enough. `balance`: [W] each, and under `over_mean` how much the busiest rank has over the mean,
    as a share.
    """
    collision = workload.collision(setting.ranks)
    placed: list[dict[str, Any]] = []
    for one in plans["chosen"]:
        table, alone = one.table, parts([one], setting)
        placed.append(
            {
                "table": table.name,
                "module": table.module,
                "sharding": one.sharding,
                "ranks": sorted({shard.rank for shard in one.shards}),
                "optimizer": table.optimizer,
                "bytes": table.rows * table.dim * table.value_bytes,
                "ids_per_sample": table.ids,
                "lookup_ms": alone.lookup + alone.apply,
                "communication_ms": alone.ids + alone.rows + alone.gradients + alone.all_reduce,
                "plain_ms": alone.total,
                "overlapped_ms": rated(alone, compute=alone.total, collision=collision, way=PRIORITIZED),
            }
        )
    balance: dict[str, dict[str, Any]] = {}
    for name, plan in plans.items():
        ranks = by_rank(plan, setting)
        means = {key: float(values.mean()) for key, values in ranks.items()}
        over = {key: float(values.max()) / means[key] - 1 if means[key] else 0.0 for key, values in ranks.items()}
        balance[name] = {**{key: values.tolist() for key, values in ranks.items()}, "over_mean": over}
    steps: list[dict[str, Any]] = []
    for way in SHOWN:
        for name, plan in plans.items():
            found = parts(plan, setting)
            step = step_ms(found, setting.hardware, workload, ranks=setting.ranks, way=way)
            steps.append(
                {
                    "way": way,
                    "plan": name,
                    "step_ms": step["step_ms"],
                    "exposed_ms": step["bubbles"]["exposed_ms"],
                    **{f"{part}_ms": value for part, value in dataclasses.asdict(found).items()},
                }
            )
    return {
        "compute_ms": compute_ms(setting.hardware, workload), "collision": collision, "placed": placed,
        "balance": balance, "steps": steps,
    }  # fmt: skip


def step_ms(parts: Parts, hardware: Hardware, workload: Workload, *, ranks: int, way: str) -> dict[str, Any]:
    """{step_ms, exposed_ms, ...} of `timeline` for one of SHOWN, with the parts of a plan in place of the mean rank's.

    Shares of collisions, of rows that are used twice, and the dense part stay as `durations.work` has them. Collisions
    are shares of all events together: the profile counts them for one column.
    """

    def moves(rows: float, gradients: float) -> Moves:
        return Moves(
            lookup=rows * parts.lookup, rows=rows * parts.rows, gradients=gradients * parts.gradients,
            apply=gradients * parts.apply,
        )  # fmt: skip

    usual = work(hardware, workload, BY_NAME[way], ranks=ranks)
    rate, back = workload.collision(ranks), workload.distinct
    colliding = min(rate * workload.colliding_distinct, back)
    planned = dataclasses.replace(
        usual,
        id_metadata=0.0,
        ids=parts.ids,
        all_reduce=usual.all_reduce + parts.all_reduce,
        whole=moves(1.0, 1.0),
        collision=moves(colliding, rate),
        exclusive=moves(back - colliding, 1 - rate),
    )
    return timeline(planned, BY_NAME[way])


def compute_ms(hardware: Hardware, workload: Workload) -> float:
    """Milliseconds of forward and backward of a mean rank, with what a step takes whatever its samples."""
    return compute(hardware, workload) + workload.fixed_ms


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
    used = sorted({one["optimizer"] for one in document["placed"]})
    of_which = [", ".join(one["table"] for one in document["placed"] if one["optimizer"] == each) for each in used]
    optimizers = "; ".join(f"{each} of {names}" for each, names in zip(used, of_which, strict=True))
    chosen, notes = balance["chosen"], [f"held: rows, states of their optimizer ({optimizers}) and buffers."]
    if ranks > _SHOWN_RANKS:
        notes.append(f"Ranks {_SHOWN_RANKS} to {ranks - 1} are in the document (--json).")
    for name, of in balance.items():
        over = ", ".join(f"{said} {signed(of['over_mean'][key])}" for key, said in _OVER.items())
        notes.append(f"Busiest rank over the mean, {_NAMES[name]}: {over}.")
    yield Table(
        title="Ranks",
        columns=(
            Column("rank", COUNT, lambda rank: rank),
            Column("look-ups and updates", MS, chosen["memory_ms"].__getitem__),
            Column("sent", BYTES, chosen["sent_bytes"].__getitem__),
            Column("received", BYTES, chosen["received_bytes"].__getitem__),
            Column("held", BYTES, chosen["memory_bytes"].__getitem__),
        ),
        rows=range(min(ranks, _SHOWN_RANKS)),
        notes=notes,
    )
    shown = {"ids": "ids", "lookup": "look-up", "rows": "rows", "gradients": "gradients", "apply": "update"}
    yield Table(
        title="Steps",
        columns=(
            Column("way", TEXT, "way"),
            Column("plan", TEXT, lambda one: _NAMES[one["plan"]]),
            Column("step", MS, "step_ms"),
            Column("exposed", MS, "exposed_ms"),
            *(Column(name, MS, f"{part}_ms") for part, name in shown.items()),
            Column("all-reduce", MS, "all_reduce_ms"),
        ),
        rows=document["steps"],
        notes=[
            f"{milliseconds(document['compute_ms'])} of compute; {percent(document['collision'])} of the events "
            "collide, of which prioritized communication exposes the rows. sparse dist: only ID exchanges ahead, as "
            "TorchRec does."
        ],
    )
