"""Managed collision under fscomm: bitwise the plain loop, in every loop."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from exact import Run, compare
from exact_kinds import SERVED
from exact_loops import LOOPS
from exact_managed import IDS, hash_zch, managed, mch
from exact_model import Config, Table
from torchrec.modules import hash_mc_evictions
from worlds import shared_world

TABLES = (
    Table(name="h", rows=24, sharding="row", features=("h0", "h1"), ids=IDS),
    Table(name="m", rows=24, sharding="row", features=("m0",), ids=IDS),
)
CONFIG = Config(
    modules={"a": (SERVED,), "b": TABLES}, static_graph=False, even=True, steps=9, spread=0.05,
    builder=managed({"h": hash_zch, "m": mch}),
)  # fmt: skip


def timed(rank: int, size: int, config: Config, loop: str, **options: Any) -> Any:
    """An hour passes every four steps."""
    now = SimpleNamespace(hour=0)

    def set_rate(run: Run, step: int) -> None:
        now.hour = step // 4
        type(run)._set_rate(run, step)

    clock = SimpleNamespace(time=lambda: 3600.0 * now.hour)
    Run._set_rate = Run.set_rate if not hasattr(Run, "_set_rate") else Run._set_rate
    with mock.patch.object(hash_mc_evictions, "time", clock), mock.patch.object(Run, "set_rate", set_rate):
        return compare(rank, size, config, LOOPS[loop], **options)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("size", [1, 2])
def test_loops(size: int, loop: str) -> None:
    for found, said in shared_world(size).run(timed, CONFIG, loop):
        print(said.get("fallbacks"), said.get("report", {}).get("forwards"))
        assert found == []
