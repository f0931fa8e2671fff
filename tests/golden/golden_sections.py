"""What the golden files hold, by the name of the file."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import golden_comm
import golden_loader
import golden_plans
import golden_ranks
import golden_tools
from golden_data import HERE
from golden_digest import folded

SECTIONS: dict[str, Callable[[Path], Any]] = {
    "orders": golden_loader.orders,
    "others": golden_loader.others,
    "states": golden_loader.states,
    "balanced_2": partial(golden_ranks.balanced, size=2),
    "balanced_3": partial(golden_ranks.balanced, size=3),
    "rebalanced": golden_ranks.rebalanced,
    "plans": golden_plans.plans,
    "comm": golden_comm.reports,
    "tools": golden_tools.documents,
}
"""Name of the golden file -> the document under "golden", from the folder of the Parquet files."""

RESUMED: dict[str, Callable[[Path, Any], Any]] = {
    "states": golden_loader.continuations,
    "balanced_2": partial(golden_ranks.continuations, size=2),
    "balanced_3": partial(golden_ranks.continuations, size=3),
    "rebalanced": golden_ranks.rebalanced_continuations,
}
"""Sections with saved states -> the document under "then": what goes on from them."""

LEVELS = {"plans": 2, "comm": 2, "tools": 2, "then": 1}
"""Section -> how many levels of its document are written out; digests stand below. Others are written out whole."""


def kept(name: str, document: Any) -> Any:
    """What a golden file holds of the document of a section, or of what goes on from it (`then`)."""
    return folded(json.loads(json.dumps(document)), LEVELS.get(name, 9))


def read(name: str) -> dict[str, Any]:
    """What the golden file of a section holds."""
    return json.loads((HERE / f"{name}.json").read_text())
