"""Workers on a device that runs late: every hand-over between threads must be ordered there, not only on the host.

No GPU takes part: the device is one of vector clocks (`clocks.Clocks`). The engine runs on it as it would on CUDA, and
every place where one thread uses what another made asks whether the two are ordered. Accesses to tables are held to
the law of `fscomm/engine/table_order.py` by `table_law.watch`.
"""

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from clocks import Clocks, Moment
from exact import compare
from exact_configs import CONFIGS
from exact_loops import LOOPS
from exact_model import build
from patience import PATIENCE_S
from table_law import watch
from worlds import shared_world

import fscomm
from fscomm.device import Device, Host
from fscomm.engine import engine
from fscomm.engine.updates import Updates
from fscomm.exchange.id_exchange import IdExchange
from fscomm.exchange.row_exchange import RowExchange
from fscomm.exchange.worker import Worker
from fscomm.tables.gradient_tap import GradientTap


class Stamps:
    """What was made when, and what was used too early."""

    def __init__(self, device: Clocks) -> None:
        self.device = device
        self.made: dict[tuple[Any, ...], Moment] = {}
        self.early: list[str] = []
        self.asked: Counter[str] = Counter()

    def make(self, *what: Any) -> None:
        self.made[what] = self.device.now()

    def use(self, by: str, *what: Any) -> None:
        self.asked[f"{what[0]} by {by}"] += 1
        if not self.made[what].is_before(self.device.now()):
            self.early.append(f"{by} used {what}")


def watched(patch: pytest.MonkeyPatch, stamps: Stamps) -> None:
    """Let the engine's parts say what they make and ask before they use."""
    run, send_rows, update = IdExchange.run, RowExchange.send_rows, RowExchange.update
    take, run_served, tap = Updates.take_gradient, engine.Engine._run_served, GradientTap.apply
    stepping: list[Any] = []

    def run_ids(self: Any, number: int, before: Any, *rest: Any) -> Any:
        ids = run(self, number, before, *rest)
        stamps.make("plan", number)
        if before is not None:
            stamps.make("way back", before.number)
        return ids

    def send(self: Any, ids: Any, groups: Any, *, collision: bool) -> None:
        stamps.use("rows", "plan", ids.number)
        send_rows(self, ids, groups, collision=collision)
        stamps.make("rows", ids.number, collision)

    def apply(self: Any, gradients: Any, *rest: Any, collision: bool) -> None:
        stamps.use("update", "way back", gradients.number)
        stamps.use("update", "gradient", gradients.number)
        update(self, gradients, *rest, collision=collision)

    def take_gradient(self: Any, step: Any, group: int, gradient: Any) -> None:
        stamps.make("gradient", step.number)
        take(self, step, group, gradient)

    def served(self: Any, m: int, step: Any, mode: Any) -> Any:
        stepping.append(step)
        found = run_served(self, m, step, mode)
        stepping.clear()
        return found

    def tapped(*given: Any) -> Any:
        for step in stepping:
            for collision in (False, True):
                stamps.use("forward", "rows", step.number, collision)
            ahead = [step.ids.ahead(g) for g in step.hypers]
            fetched = {id(tensor) for of_group in ahead for tensor in (of_group.buffer, of_group.merge.index)}
            assert fetched <= stamps.device.read, "memory may be given away"
        return tap(*given)

    for owner, name, function in (
        (IdExchange, "run", run_ids),
        (RowExchange, "send_rows", send),
        (RowExchange, "update", apply),
        (Updates, "take_gradient", take_gradient),
        (engine.Engine, "_run_served", served),
        (GradientTap, "apply", tapped),
    ):
        patch.setattr(owner, name, function)


def raced(rank: int, size: int, config: Any, loop: Any, forget: str) -> tuple[list[str], list[str], dict[str, int]]:
    """What differs from the plain run, what was used too early, and how often it was asked."""
    device = Clocks()
    stamps = Stamps(device)
    with pytest.MonkeyPatch.context() as patch:
        seen = watch(patch, device)
        watched(patch, stamps)
        if forget:
            patch.setattr(device, forget, lambda mark: None)
        found, _ = compare(rank, size, config, loop)
    return found, stamps.early + seen.broken(), dict(stamps.asked)


ASKED = {
    "plan by rows",
    "way back by update",
    "gradient by update",
    "rows by forward",
}


OTHER_LOOPS = ["without_backward", "left_early", "state_dict_everywhere"]


@pytest.mark.parametrize(
    "loop", ["accumulation", *(pytest.param(loop, marks=pytest.mark.long) for loop in OTHER_LOOPS)]
)
def test_every_hand_over_between_threads_is_ordered_on_the_device(loop: str) -> None:
    for found, early, asked in shared_world(2).run(raced, CONFIGS["row"], LOOPS[loop], ""):
        assert (found, early) == ([], [])
        assert set(asked) >= ASKED


def test_hand_overs_without_marks_are_noticed() -> None:
    for _, early, _ in shared_world(2).run(raced, CONFIGS["row"], LOOPS["base"], "after"):
        assert {each.split(" used ")[0] for each in early} >= {"rows", "update", "forward"}
        assert any("is not before" in each for each in early)


def test_work_runs_behind_its_submitter_and_before_who_takes_the_result() -> None:
    device = Clocks()
    worker = Worker("test", pytest.fail, device=device, limit_s=PATIENCE_S)
    device.clock["mine"] = 7
    pending = worker.submit(lambda: device.clock.copy())
    seen = pending.result(PATIENCE_S)
    worker.close()
    assert seen["mine"] == 7
    assert device.clock["fscomm test"] == pending.mark.clock["fscomm test"] == 1


class Payload:
    """Something that a weak reference can point to."""


def test_work_under_way_keeps_what_it_uses() -> None:
    device = Clocks()
    worker = Worker("test", pytest.fail, device=device, limit_s=PATIENCE_S)

    def submitted() -> tuple[Any, weakref.ref[Payload]]:
        held = Payload()

        def work(held: Payload = held) -> None:
            del held

        pending = worker.submit(work)
        pending.result(PATIENCE_S)
        return pending.mark, weakref.ref(held)

    mark, held = submitted()
    worker.submit(lambda: None).result(PATIENCE_S)
    assert held() is not None
    device.wait(mark, PATIENCE_S)
    worker.submit(lambda: None).result(PATIENCE_S)
    worker.submit(lambda: None).result(PATIENCE_S)
    assert held() is None
    worker.close()


def test_closing_waits_for_the_device() -> None:
    device = Clocks()
    worker = Worker("test", pytest.fail, device=device, limit_s=PATIENCE_S)
    marks = []
    for _ in range(3):
        pending = worker.submit(lambda: None)
        pending.result(PATIENCE_S)
        marks.append(pending.mark)
    worker.close()
    assert [mark in device.waited for mark in marks] == [True] * 3


def not_on_a_gpu(rank: int, size: int) -> dict[str, str]:
    model, _ = build(CONFIGS["row"], size)
    with pytest.raises(fscomm.NotServedError, match="not nccl: the tables are on the CPU"):
        fscomm.enable(model, transport="nccl", strict=True).__enter__()
    with fscomm.enable(model, transport="nccl") as served:
        pass
    return dict(served.report().fallbacks)


def test_tables_elsewhere_than_the_transport_is_for_run_plainly() -> None:
    for said in shared_world(2).run(not_on_a_gpu):
        assert list(said) == ["embeddings.a"]
        assert said["embeddings.a"].startswith("there is no transport for these rows (transport='nccl'). not nccl:")


def _is_device(make: Callable[[], Device]) -> Device:
    return make()


def test_the_devices_keep_to_the_protocol() -> None:
    """Checked by mypy; the CPU needs no marks."""
    host = _is_device(Host)
    assert host.mark() is None
    assert host.is_done(None)
