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


FOR_FLOATS = {"tables_read_by_whatever_looks_at_them", "tables_changed_by_whatever_reaches_them", "scaled_and_clipped"}


def timed(rank: int, size: int, config: Config, loop: str, **options: Any) -> Any:
    """An hour passes every four steps."""
    now, set_rate = SimpleNamespace(hour=0), Run.set_rate

    def set_rate_and_hour(run: Run, step: int) -> None:
        now.hour = step // 4
        set_rate(run, step)

    def from_the_first_hour(run: Run) -> None:
        now.hour = 0
        LOOPS[loop](run)

    clock = SimpleNamespace(time=lambda: 3600.0 * now.hour)
    with mock.patch.object(hash_mc_evictions, "time", clock), mock.patch.object(Run, "set_rate", set_rate_and_hour):
        return compare(rank, size, config, from_the_first_hour, **options)


@pytest.mark.parametrize("loop", sorted(LOOPS.keys() - FOR_FLOATS))
@pytest.mark.parametrize("size", [1, 2])
def test_loops(size: int, loop: str) -> None:
    for found, said in shared_world(size).run(timed, CONFIG, loop):
        print(said.get("fallbacks"), said.get("report", {}).get("forwards"))
        assert found == []
