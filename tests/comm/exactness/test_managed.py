"""Managed collision under fscomm: bitwise the plain loop, in every loop."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import cycle
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from exact import Loop, Run, check_equal, compare, new_run
from exact_kinds import SERVED
from exact_loops import LOOPS
from exact_managed import IDS, at_hour, hash_zch, managed, mch, needs_mpzch
from exact_model import Config, Table
from managed_programs import managed_configs, managed_programs, play_managed
from patience import PATIENCE_S
from programs import WARM_UP, Operation
from test_programs import STREAMS, THREADS, all_are_exact, check_program
from test_programs import Kind as KindOfPrograms
from torchrec import KeyedJaggedTensor
from usual_programs import USUAL
from worlds import shared_world

from fscomm.engine.program import Program
from fscomm.engine.step import Step
from fscomm.exchange.handed_over import Gradients
from fscomm.exchange.operations import EXCLUSIVE, Class, Due, Kind, class_of_reassigned
from fscomm.exchange.operations import Operation as FetchOrUpdate
from fscomm.exchange.rows import RowExchange
from fscomm.exchange.wire_gate import WireGate
from fscomm.managed.guard import EVICTED

pytestmark = needs_mpzch
EVICTED_ROWS = class_of_reassigned(EVICTED)
TABLES = (
    Table(name="h", rows=24, sharding="row", features=("h0", "h1"), ids=IDS),
    Table(name="m", rows=24, sharding="row", features=("m0",), ids=IDS),
)
CONFIG = Config(
    modules={"a": (SERVED,), "b": TABLES}, static_graph=False, even=True, steps=9, spread=0.05,
    builder=managed({"h": hash_zch, "m": mch}),
)  # fmt: skip
MANAGED = KindOfPrograms(configs=managed_configs(), programs=managed_programs, by=play_managed)
LENGTH = 14  # operations of a program
LEAST_SERVED = 0.25  # of the forwards of managed modules; a fourth of the loops hold batches, and are not served
LEAST_EVICTED = 10  # rows, by a program on a rank


def timed(rank: int, size: int, config: Config, loop: str, **options: Any) -> Any:
    """An hour passes every four steps."""
    now, set_rate = SimpleNamespace(hour=0), Run.set_rate

    def set_rate_and_hour(run: Run, step: int) -> None:
        now.hour = step // 4
        set_rate(run, step)

    def from_the_first_hour(run: Run) -> None:
        now.hour = 0
        LOOPS[loop](run)

    with at_hour(lambda: now.hour), mock.patch.object(Run, "set_rate", set_rate_and_hour):
        return compare(rank, size, config, from_the_first_hour, **options)


@pytest.mark.long
@pytest.mark.parametrize("loop", sorted(LOOPS))
@pytest.mark.parametrize("size", [1, 2])
def test_loops(size: int, loop: str) -> None:
    check_equal(shared_world(size), timed, CONFIG, loop)


# Of which maps see other batches, in other order, than in a loop that trains on each once.
ABOUT_BATCHES = {
    "passes out of turn", "parts of the model, other batches", "states, loops and blocks", "evaluation", "errors",
    "prefetchers",
}  # fmt: skip


@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=() if name in ABOUT_BATCHES else pytest.mark.long) for name in USUAL]
)
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 2])
def test_usual_programs(size: int, program: str) -> None:
    check_program(size, CONFIG, USUAL[program].replace("train_next", "hour train_next", 1), by=play_managed)


ONCE_WRONG = {
    "ids are mapped anew, by a forward that is computed again": "next recomputed backward next recomputed:1 backward",
    "a state is loaded, and the count of steps in it is another one": "train_on:3 load train_on:3 load:1 train_on:3",
    "a batch is evaluated instead of trained on": "train_on:3 inspect_instead train_on hour inspect_instead",
    "one of the maps only reads": "train_on:3 change_mode train_on:3 change_mode:3 train_on:3",
    "rows are evicted at other steps from now on": "train_on:3 change_mode:1 train_on:3 change_mode:2 train_on:3",
    "an hour begins where twins are made anew": "load:5 new_loop train_next hour train_on:2 hour train_on:2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("program", "chance"), list(zip(ONCE_WRONG.values(), cycle([THREADS, STREAMS]), strict=False)), ids=ONCE_WRONG
)
def test_chosen_programs(program: str, chance: int) -> None:
    """Smallest cases of what went wrong once."""
    tables = [Table(name=name, rows=12, sharding="row", features=(name,), ids=IDS) for name in "bcd"]
    maps = {"b": partial(mch, interval=2), "c": partial(mch, interval=1), "d": partial(hash_zch, probes=1)}
    modules = {"b": tuple(tables[:2]), "d": tuple(tables[2:])}
    config = Config(
        modules=modules, static_graph=False, max_batch=8, spread=0.02, builder=managed(maps), hides=True
    )  # fmt: skip
    check_program(1, config, program, chance, play_managed)


@pytest.mark.parametrize(
    "program",
    [
        "train_on:3 train_on:3 train_next:4 foreign:4 forward:8",
        "train_on:3 train_on:3 hour:11 change_maps:1 train_next:4 train_next train_next",
    ],
)
def test_a_batch_that_is_mapped_to_other_rows_than_those_ahead(program: str) -> None:
    """Rows that were fetched ahead for the next one wait for its update."""
    tables = {
        "b": Table(name="b0", rows=24, sharding="row", features=("b0_0", "b0_1"), ids=IDS),
        "c": Table(name="c0", rows=48, sharding="row", features=("c0_0",), ids=IDS),
    }
    maps = {"b0": partial(hash_zch, policy="SINGLE_TTL", hours=1, probes=2), "c0": partial(hash_zch, policy="LRU")}
    config = Config(
        modules={"a": (SERVED,), **{module: (table,) for module, table in tables.items()}}, static_graph=False,
        max_batch=8, spread=0.05, seed=734, hides=True, dedup=True, host=2, builder=managed(maps, tells=False),
    )  # fmt: skip
    check_program(2, config, program, by=play_managed)


def test_an_id_that_is_mapped_to_two_rows() -> None:
    """A feature that only reads asks for it before another feature brings it in. Such steps run plainly."""
    table = Table(name="h", rows=24, sharding="row", features=("h0_readonly", "h1"), ids=IDS)
    maps = managed({"h": partial(hash_zch, enable_per_feature_lookups=True)})
    config = Config(modules={"b": (table,)}, static_graph=False, max_batch=8, spread=0.02, builder=maps, steps=9)
    for size in (1, 2):
        for said in check_equal(shared_world(size), timed, config, "base"):
            assert "two rows" in str(said["report"]["forwards"]["embeddings.b"]["plain"])


STEPS = 14


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise"])
@pytest.mark.parametrize("size", [1, 2])
def test_rows_that_the_step_before_used_are_evicted(size: int, optimizer: str) -> None:
    """After their updates. All steps are served but the first one."""
    ids = 400
    table = Table(name="m", rows=12 * size, sharding="row", features=("m0",), ids=ids)
    config = Config(
        modules={"b": (table,)}, optimizer=optimizer, static_graph=False, max_batch=12, max_length=8, spread=0.12,
        seed=2, builder=managed({"m": partial(mch, policy="lru", interval=1, ids=ids)}),
    )  # fmt: skip
    evicted = 0
    for counts, _ in check_program(size, config, "train_next " * STEPS, 5, play_managed):
        assert counts.served["embeddings.b"] == len(WARM_UP) + STEPS - 1
        evicted += counts.evicted
    assert evicted > 5 * STEPS


def rivals(run: Run) -> None:
    """Pairs of batches: of many new ids and one that has a row, and of one of the new ids. All rows but two go to the
    new ones in the second step, which uses one of them. One id comes so often at first that it stays, and that the
    history of MCH is long enough."""
    batches = run.loader()
    for step, batch in enumerate(batches):
        pair, second = divmod(step, 2)
        new, times = RIVALS * pair + torch.arange(RIVALS), 2 * pair + 2  # more often than those before
        ids = new[:1] if second else torch.cat([new.repeat(times), new[-1:] - RIVALS * min(pair, 1)])
        if step == 0:
            ids = torch.cat([ids, torch.full((2 * RIVALS * STEPS,), IDS - 1)])
        lengths = torch.zeros(len(batch.target), dtype=torch.int64)
        lengths[0] = len(ids)
        batch.ids["b"] = KeyedJaggedTensor(["m0"], ids, lengths=lengths, stride=len(lengths))
    run.train_all(batches)


RIVALS = 10


def play_rivals(_: list[Operation]) -> Loop:
    return rivals


@pytest.mark.parametrize("size", [1, 2])
def test_evicted_rows_that_nobody_asks_for(size: int) -> None:
    """A row that the step before used: its update comes first, too."""
    table = Table(name="m", rows=(RIVALS + 2) * size, sharding="row", features=("m0",), ids=IDS)
    config = Config(
        modules={"b": (table,)}, static_graph=False, steps=STEPS, builder=managed({"m": partial(mch, policy="lfu")})
    )
    evicted = 0
    for counts, _ in check_program(size, config, "", 5, play_rivals):
        assert counts.served["embeddings.b"] == STEPS - 1
        evicted += counts.evicted
    assert evicted >= RIVALS * (STEPS // 2 - 1)


def expectations(rank: int, size: int) -> list[tuple[bool, bool]]:
    """Of every step, whether its evicted rows were expected before they were fetched, and after that."""
    run = new_run(rank, size, CONFIG.but(steps=24), "fscomm")
    now, update, fetch_reassigned = SimpleNamespace(hour=0), Program.update, Program.fetch_reassigned
    stop_expecting = WireGate.stop_expecting_control_word
    expected: list[tuple[bool, bool]] = []
    last: list[Callable[[], bool]] = []
    before: list[bool] = []

    def updating(self: Program, *args: Any, expecting: Callable[[], bool]) -> None:
        last[:] = [expecting]
        update(self, *args, expecting=expecting)

    def fetching(self: Program, step: Step, m: int) -> None:
        fetch_reassigned(self, step, m)
        before.extend(expecting() for expecting in last)

    def settling(self: WireGate) -> None:
        """Follows in a forward."""
        expected.extend((each, expecting()) for each, expecting in zip(before, last, strict=False))
        before.clear()
        stop_expecting(self)

    with at_hour(lambda: now.hour), pytest.MonkeyPatch.context() as patch, run.enable() as comm:
        patch.setattr(Program, "update", updating)
        patch.setattr(Program, "fetch_reassigned", fetching)
        patch.setattr(WireGate, "stop_expecting_control_word", settling)
        for step, batch in enumerate(comm.lookahead(run.loader())):
            now.hour = step // 4
            run.train(step, batch)
    return expected


def test_evicted_rows_are_expected_until_they_are_fetched() -> None:
    for expected in shared_world(2).run(expectations):
        assert len(expected) > 1
        assert set(expected) == {(True, False)}


def beside(rank: int, size: int) -> list[Class]:
    """What ends, one after the other, when rows are evicted while a collision operation and an exclusive one run."""
    may_end, ended = threading.Event(), []
    with new_run(rank, size, CONFIG, "fscomm").enable() as comm, pytest.MonkeyPatch.context() as patch:
        executor = comm._engine._executor

        def running(self: RowExchange, operation: FetchOrUpdate) -> None:
            if operation.of_class is Class.COLLISION:
                assert may_end.wait(PATIENCE_S)
            if operation.of_class is Class.EXCLUSIVE:
                executor.wire_gate.wait()
            ended.append(operation.of_class)

        patch.setattr(RowExchange, "run", running)
        classes = Class.COLLISION, Class.EXCLUSIVE, EVICTED_ROWS
        by_class = {each: FetchOrUpdate(kind=Kind.FETCH, of_class=each) for each in classes}
        done = executor.submit([by_class[Class.COLLISION]], Due.NOW)
        done += executor.submit([by_class[Class.EXCLUSIVE]])
        executor.submit([by_class[EVICTED_ROWS]], Due.NOW)[0].result(PATIENCE_S)
        may_end.set()
        for each in done:
            each.result(PATIENCE_S)
    return ended


def test_evicted_rows_wait_for_no_collision_rows_and_exclusive_ones_for_both() -> None:
    assert shared_world(2).run(beside) == [[EVICTED_ROWS, Class.COLLISION, Class.EXCLUSIVE]] * 2


def one_evicts(run: Run) -> None:
    """Only rank 0 does, and waits for exclusive gradients, with which the other one is late: it has begun to fetch the
    collision rows of the same forward, as the step before had no backward pass."""
    maps = run.model.module.embeddings["b"]._managed_collision_collection._managed_collision_modules
    maps["m"]._eviction_interval = 1000 if run.rank else 1
    send_back, fetch, fetched = RowExchange.send_back, Program.fetch, threading.Event()

    def sending(self: RowExchange, gradients: Gradients, ids: Any, groups: Any, number: int) -> None:
        if run.rank and number == EXCLUSIVE and gradients.number == WITHOUT_BACKWARD - 1:
            assert fetched.wait(PATIENCE_S)
        send_back(self, gradients, ids, groups, number)

    def fetching(self: Program, step: Step, modules: Any, *, background: bool) -> None:
        fetch(self, step, modules, background=background)
        if not background and step.number == WITHOUT_BACKWARD + 1:
            fetched.set()

    with pytest.MonkeyPatch.context() as patch, run.enable() as comm:
        patch.setattr(RowExchange, "send_back", sending)
        patch.setattr(Program, "fetch", fetching)
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step == WITHOUT_BACKWARD:
                run.set_rate(step)
                run.loss(step, batch)
            else:
                run.train(step, batch)


WITHOUT_BACKWARD = 4


def test_one_rank_evicts_and_waits_for_what_another_one_holds_back() -> None:
    maps = managed({"m": partial(mch, interval=1, ids=8)})
    table = Table(name="m", rows=24, sharding="row", features=("m0",), ids=8)  # soon all ids have a row, and keep it
    config = Config(modules={"b": (table,)}, static_graph=False, even=True, steps=8, builder=maps)
    for said in check_equal(shared_world(2), compare, config, one_evicts):
        assert said["report"]["forwards"]["embeddings.b"]["served"] > 4


def counted(rank: int, size: int) -> Any:
    """Of the report of a run: what maps did, by step and in all."""
    _, said = timed(rank, size, CONFIG.but(steps=24), "base")
    return said["report"]


def test_the_report_counts_what_maps_did() -> None:
    for table in ("embeddings.b.h", "embeddings.b.m"):
        sums: Counter[str] = Counter()
        for report in shared_world(2).run(counted):
            total = report["total"]["managed"][table]
            steps = [step["managed"] for step in report["steps"] if table in step["managed"]]
            assert sum(step[table]["evicted"] for step in steps) == total["evicted"]
            sums += Counter(total)
        assert 0 < sums["hits"] < sums["own"] < sums["ids"]
        assert min(sums["inserted"], sums["evicted"], sums["late"]) > 0, sums


# Last: a broken map lets ranks wait for each other, which the chosen programs above show in seconds.
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("size", "fixed", "most"),
    [(2, 2, 6), *(pytest.param(size, None, None, marks=pytest.mark.long) for size in (1, 2, 3, 4))],
)
def test_random_programs_are_exact(size: int, fixed: int | None, most: int | None, record_property: Any) -> None:
    count, counts = all_are_exact(size, LENGTH, fixed=fixed, most=most, kind=MANAGED)
    served, plain = (
        sum(number for module, number in of.items() if "a" not in module.split("."))
        for of in (counts.served, counts.plain)
    )
    assert served > LEAST_SERVED * (served + plain)
    assert counts.evicted > LEAST_EVICTED * count * size
    record_property(
        "summary",
        f"{count} programs on {size} ranks: {served} of {served + plain} forwards of managed modules served, "
        f"{counts.evicted} rows evicted",
    )
