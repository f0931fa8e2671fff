"""Exactness: whatever a user can look at is, to the bit, what the same loop gives without fscomm."""

import contextlib
import threading
from itertools import cycle
from typing import Any
from unittest import mock

import pytest
import torch
from clocks import Clocks, on_streams
from exact import compare, differences, flat, plain, raw_state
from exact_configs import CONFIGS, configs
from exact_loops import LOOPS, base
from exact_model import Config, build
from hypothesis import given
from hypothesis import strategies as st
from usual_programs import USUAL, usual
from worlds import World, shared_world

from fscomm import comm
from fscomm.loop import moving
from fscomm.loop.kjt_paths import walk
from fscomm.plan.group_plan import GroupPlan
from fscomm.report.report import WARM_UP
from fscomm.tables.torchrec.binding import TorchRecBinding

TRANSPORTS = ("gloo", "copy-engine", "host-staged")


def moves(where: torch.device | None) -> moving.Moving:
    """Batches are moved, if only to where they are: ids come from the batch before that."""
    return moving.Moving(where or torch.device("cpu"))


def notes(device: Clocks) -> Any:
    """What moves a batch, and notes when."""
    to_device = moving.to_device

    def move(batch: Any, where: torch.device) -> Any:
        moved = to_device(batch, where)
        device.moved |= {id(each): (each, device.now()) for each in (moved, *(kjt for _, kjt in walk(moved)))}
        return moved

    return move


def looks_at(device: Clocks, early: list[str]) -> Any:
    """What prepares features, and notes if they were not there yet."""
    prepare = TorchRecBinding.prepare

    def look(self: TorchRecBinding, features: Any, on_host: Any) -> Any:
        kjt, moment = device.moved.get(id(features), (None, None))
        if kjt is features and not moment.is_before(device.now()):
            early.append("features were used before they were on the device")
        return prepare(self, features, on_host)

    return look


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
    """chunk_rows: the most that travel at once. ahead, streams: see `check`."""
    device, early = Clocks(done_share=0.5, runs_ahead=True), list[str]()
    with contextlib.ExitStack() as patched:
        if chunk_rows:
            fixed = property(lambda plan: chunk_rows * plan.layout.row_bytes, lambda plan, nbytes: None)
            patched.enter_context(mock.patch.object(GroupPlan, "chunk_bytes", fixed, create=True))
        if streams:
            patched.enter_context(on_streams())
        if ahead:
            patched.enter_context(mock.patch.object(comm, "device_of", return_value=device))
            patched.enter_context(mock.patch.object(moving, "device_of", return_value=device))
            patched.enter_context(mock.patch.object(comm, "Moving", moves))
            patched.enter_context(mock.patch.object(TorchRecBinding, "prepare", looks_at(device, early)))
            patched.enter_context(mock.patch.object(moving, "to_device", notes(device)))
        found, said = compare(rank, size, config, LOOPS.get(loop) or usual(loop), "fscomm", options)
    if threading.current_thread().name in device.stalls:
        found.append("the training thread waited for the device")
    return found + early, said


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
    answers = world.run(compared, config, loop, {"transport": transport, **options}, chunk_rows, ahead, streams)
    for rank, (found, said) in enumerate(answers):
        assert found == [], f"rank {rank} of {world.size}, {loop}"
        assert said["report"]["transport"] == transport  # not plainly, because the warm-up had failed
    return [said for _, said in answers]


MODELS = [  # one for each kind of sharding, of precision on the way, of bags, of kernels; each transport, and chunks
    ("several", 1, "gloo", None),
    ("several", 2, "copy-engine", None),
    ("odd tables", 2, "gloo", None),
    ("one KJT", 2, "host-staged", 3),
    ("half output", 2, "gloo", None),
    ("bf16", 2, "gloo", None),
    ("counters", 2, "gloo", None),
    ("pooled mixed", 2, "host-staged", None),
    ("pooled hosts", 2, "gloo", 2),
    ("pooled weighted", 3, "gloo", None),  # sums of three depend on their order
    ("pooled called twice", 2, "copy-engine", None),
    ("quantised", 2, "gloo", None),
    ("quantised sums", 2, "gloo", None),
    ("quantised in groups", 2, "gloo", None),
]


@pytest.mark.parametrize(("name", "size", "transport", "chunk_rows"), MODELS, ids=[f"{m[0]}-{m[1]}" for m in MODELS])
def test_models(name: str, size: int, transport: str, chunk_rows: int | None) -> None:
    """All forwards but those of the first step are served."""
    config = CONFIGS[name]
    for said in check(shared_world(size), config, "base", chunk_rows, transport=transport):
        assert said["fallbacks"] == {}
        for forwards in said["report"]["forwards"].values():
            assert forwards["served"] == config.calls * (config.steps - 1)


@pytest.mark.parametrize(
    ("name", "transport", "chunk_rows"),
    [("several", "copy-engine", None), ("one KJT", "host-staged", 3), ("pooled mixed", "gloo", None)],
)
def test_models_on_a_device(name: str, transport: str, chunk_rows: int | None) -> None:
    for said in check(shared_world(2), CONFIGS[name], "base", chunk_rows, transport=transport, ahead=True):
        assert said["fallbacks"] == {}


@pytest.mark.parametrize(("dedup", "transport"), [(False, "gloo"), (True, "copy-engine")])
def test_groups_that_run_plainly_inside_a_served_forward(dedup: bool, transport: str) -> None:
    """Of a module that has tables which cannot be served the others are: nine tenths of the ids of this model."""
    plainly = {"embeddings.a (table_wise)": "fused_uvm_caching", "embeddings.b (data_parallel)": "data_parallel"}
    served = {"embeddings.a (row_wise)", "embeddings.a (column_wise)"}
    served |= {"embeddings.b (row_wise)", "embeddings.b (table_wise)"}
    config = CONFIGS["planned"].but(dedup=dedup)
    for said in check(shared_world(2), config, "base", transport=transport):
        assert said["fallbacks"].keys() == plainly.keys()
        forwards = said["report"]["forwards"]
        assert forwards.keys() == plainly.keys() | served
        for name, each in forwards.items():
            assert each["ids"] + each["plain_ids"] > 0
            assert each["served"] == (0 if name in plainly else config.steps - 1)
            assert all(plainly.get(name, WARM_UP) in why for why in each["plain"])
        ids = sum(each["ids"] for each in forwards.values())
        assert ids >= 0.9 * (ids + sum(forwards[name]["plain_ids"] for name in plainly))


@pytest.mark.parametrize(("loop", "ahead"), list(zip(LOOPS, cycle([True, False]), strict=False)))
def test_loops(loop: str, ahead: bool) -> None:
    """Nothing runs plainly that could be served."""
    for said in check(shared_world(2), CONFIGS["small"], loop, ahead=ahead, streams=ahead):
        without = loop == "without_lookahead"
        assert bool(said["fallbacks"]) == without
        assert all("use comm.lookahead" in reason for reason in said["fallbacks"].values())


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("loop", [*LOOPS, *USUAL])
def test_loops_of_other_models(loop: str, size: int) -> None:
    """With several sharding groups in a module; with some that run plainly."""
    planned = CONFIGS["planned"]
    for config in (CONFIGS["loops"], planned.but(modules={"a": planned.modules["a"]})):
        check(shared_world(size), config, loop)


@pytest.mark.long
@pytest.mark.timeout(7200)
@given(
    size=st.integers(1, 4),
    config=configs(),
    loop=st.sampled_from(sorted([*LOOPS, *USUAL])),
    transport=st.sampled_from(TRANSPORTS),
    per_host=st.sampled_from([1, 2]),
    chunk_rows=st.sampled_from([None, None, 2, 3]),
)
def test_many_random_models_and_loops(
    size: int, config: Config, loop: str, transport: str, per_host: int, chunk_rows: int | None
) -> None:
    per_host = per_host if size % 2 == 0 else 1
    check(shared_world(size), config, loop, chunk_rows, transport=transport, ranks_per_host=per_host)


PASSED_ON = {"exclusive rows, in host", "collision rows, in host"}


@pytest.mark.long
def test_hosts_of_three_ranks() -> None:
    """A division by three and three is not one by nine. Rows come to a host once, and are passed on there."""
    with World(9) as world:
        check(world, CONFIGS["pooled hosts"].but(host=3, max_batch=16), "base")
        for said in check(world, CONFIGS["several"], "base", ranks_per_host=3):
            moved = [by_kind for step in said["report"]["steps"] for by_kind in step["bytes"].values()]
            assert {kind for of_step in moved for kind in PASSED_ON if of_step[kind]["sent"]} == PASSED_ON


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
