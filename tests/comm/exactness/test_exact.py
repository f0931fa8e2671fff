"""Exactness: whatever a user can look at is, to the bit, what the same loop gives without fscomm."""

import contextlib
from itertools import cycle
from typing import Any
from unittest import mock

import pytest
import torch
from exact import check_equal, differences, flat, plain, raw_state
from exact_configs import CONFIGS
from exact_device import compare_played
from exact_loops import LOOPS, base
from exact_model import Config, build
from usual_programs import USUAL, usual
from worlds import World, shared_world

from fscomm.plan.group_plan import GroupPlan


def compared(
    rank: int,
    size: int,
    config: Config,
    loop: str,
    options: dict[str, Any],
    chunk_rows: int | None = None,
    ahead: bool = False,
    streams: bool = False,
) -> tuple[list[str], dict[str, Any]]:
    """chunk_rows: the most that travel at once. ahead, streams: see `compare_played`."""
    with contextlib.ExitStack() as patched:
        if chunk_rows:
            fixed = property(lambda plan: chunk_rows * plan.layout.row_bytes, lambda plan, nbytes: None)
            patched.enter_context(mock.patch.object(GroupPlan, "chunk_bytes", fixed, create=True))
        return compare_played(rank, size, config, LOOPS.get(loop) or usual(loop), options, ahead=ahead, streams=streams)


def check(
    world: World,
    config: Config,
    loop: str,
    chunk_rows: int | None = None,
    *,
    transport: str = "gloo",
    ahead: bool = False,
    streams: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """Nothing differs. Returns what fscomm said of itself on every rank. ahead: of a device; it is played. streams: one
    worker issues to them, whatever the transport."""
    options["transport"] = transport
    reported = check_equal(world, compared, config, loop, options, chunk_rows, ahead, streams)
    assert {said["report"]["transport"] for said in reported} == {transport}  # not plainly: the warm-up had failed
    return reported


def check_model(name: str, size: int, chunk_rows: int | None = None, transport: str = "gloo") -> None:
    """All forwards but those of the first step are served."""
    config = CONFIGS[name]
    for said in check(shared_world(size), config, "base", chunk_rows, transport=transport):
        assert said["fallbacks"] == {}
        for forwards in said["report"]["forwards"].values():
            assert forwards["served"] == config.calls * (config.steps - 1)


MODELS = [("several", 1), ("odd tables", 2), ("half output", 2), ("bf16", 2), ("counters", 2)]


@pytest.mark.parametrize(("name", "size"), MODELS)
def test_models(name: str, size: int) -> None:
    """One for each kind of sharding, of precision, of kernels. `test_extensions.py` has others."""
    check_model(name, size)


@pytest.mark.parametrize(("loop", "ahead"), list(zip(LOOPS, cycle([True, False]), strict=False)))
def test_loops(loop: str, ahead: bool) -> None:
    """Nothing runs plainly that could be served."""
    for said in check(shared_world(2), CONFIGS["small"], loop, ahead=ahead, streams=ahead):
        reasons = set(said["fallbacks"].values())
        if loop == "read_by_another_thread":  # it may be stopped while it refers to a table, on a busy machine
            reasons = {reason for reason in reasons if "memory that torch does not watch" not in reason}
        assert bool(reasons) == (loop == "without_lookahead")
        assert all("use comm.lookahead" in reason for reason in reasons)


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("loop", [*LOOPS, *USUAL])
def test_loops_of_another_model(loop: str, size: int) -> None:
    """With several sharding groups in a module."""
    check(shared_world(size), CONFIGS["loops"], loop)


def changes(rank: int, size: int, config: Config) -> tuple[set[str], set[str]]:
    """Names of the tables' parts, and of those that training changed."""
    model, optimizer = build(config, size)
    start = flat(raw_state(model, optimizer))
    end = plain(rank, size, config, base)["end"]
    touched = {line.split(":")[0] for line in differences(start, end)}
    tables = {f"/{name}/{part}" for name in start if "weights" in name for part in range(len(start[name]))}
    return tables, tables & touched


def test_training_changes_every_table_and_one_bit_is_a_difference() -> None:
    """Otherwise the other tests here would show nothing."""
    for tables, changed in shared_world(2).run(changes, CONFIGS["several"]):
        assert tables
        assert changed == tables
    here = {"a": [torch.zeros(3), {"b": torch.ones(2, dtype=torch.float16)}], "c": 1.0}
    there = flat(here)
    assert differences(here, there) == []
    there["a"][1]["b"].view(torch.int16)[1] += 1
    assert differences(here, there) == ["/a/1/b: 1 of 2 differ, by up to 0.000977"]
    assert differences({"c": 1}, {"c": 1.0}) == ["/c: 1 against 1.0"]
    assert differences({"c": 1}, {}) == ["/c: on one side only"]
