"""Shows a sharding plan: tables, ranks and steps."""

from collections.abc import Mapping
from typing import Any

from freescale_tools.console.terminal import Terminal

_NAMES = {"chosen": "this plan", "torchrec": "TorchRec's default"}
_SHOWN_RANKS = 16


def show(terminal: Terminal, document: Mapping[str, Any]) -> None:
    """The tables of the document of `freescale plan`."""
    ranks = document["ranks"]
    terminal.table(
        f"Plan for {ranks} ranks, {document['hardware']}, {document['way']} steps of {document['batch_size']} samples",
        ["table", "module", "sharding", "ranks", "MB", "look-up ms", "exchange ms", "alone ms", "overlapped ms"],
        [
            [
                one["table"], one["module"], one["sharding"].replace("_", "-"), _ranks(one["ranks"], ranks),
                one["bytes"] / 1e6, one["lookup_ms"], one["communication_ms"], one["plain_ms"], one["overlapped_ms"],
            ]
            for one in document["placed"]
        ],
        notes=[
            "Milliseconds of a step with this table alone. overlapped: what is left with prioritized communication "
            "behind enough compute."
        ],
    )  # fmt: skip
    balance = document["balance"]["chosen"]
    terminal.table(
        "Ranks",
        ["rank", "look-ups and updates ms", "MB sent", "MB received", "MB held"],
        [
            [str(rank), *(balance[name][rank] * scale for name, scale in _COLUMNS.items())]
            for rank in range(min(ranks, _SHOWN_RANKS))
        ],
        notes=[
            *([f"Ranks {_SHOWN_RANKS} to {ranks - 1} are in the document (--json)."] if ranks > _SHOWN_RANKS else []),
            *(f"Busiest rank over the mean, {_NAMES[name]}: {_over(document, name)}." for name in _NAMES),
        ],
    )
    terminal.table(
        "Steps, ms",
        ["way", "plan", "step", "exposed", "ids", "look-up", "rows", "gradients", "update", "all-reduce"],
        [
            [
                one["way"], _NAMES[one["plan"]], one["step_ms"], one["exposed_ms"],
                *(one[f"{part}_ms"] for part in ("ids", "lookup", "rows", "gradients", "apply", "all_reduce")),
            ]
            for one in document["steps"]
        ],
        notes=[
            f"{document['compute_ms']:.4g} ms of compute; {document['collision']:.0%} of the events collide, of which "
            "prioritized communication exposes the rows. sparse dist: only ID exchanges ahead, as TorchRec does."
        ],
    )  # fmt: skip


_COLUMNS = {"memory_ms": 1.0, "sent_bytes": 1e-6, "received_bytes": 1e-6, "memory_bytes": 1e-6}


def _ranks(held: list[int], ranks: int) -> str:
    return "all" if len(held) == ranks else ", ".join(map(str, held))


def _over(document: Mapping[str, Any], name: str) -> str:
    over = document["balance"][name]["over_mean"]
    said = {"memory_ms": "look-ups", "sent_bytes": "bytes sent", "memory_bytes": "memory"}
    return ", ".join(f"{text} {over[key]:+.0%}" for key, text in said.items())
