"""Lanes on a device that runs late: every hand-over between threads must be ordered there, not only on the host.

No GPU takes part. `Clocks` is a device of which only the order is looked at: each thread keeps a vector clock, a mark
carries one, and `after` joins them. Work X of thread T is ordered before what thread S issues only if S has seen a mark
that T took after X. The engine runs on it as it would on CUDA, and every place where one thread uses what another made
asks whether the two are ordered.
"""

import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from exact import compare
from exact_configs import CONFIGS
from exact_loops import LOOPS
from exact_model import build
from worlds import shared_world

import fscomm
from fscomm import comm, engine
from fscomm.device import Device, Host
from fscomm.ids import IdsStage
from fscomm.lane import Lane
from fscomm.merge_rows import MergeRows
from fscomm.traffic import Traffic

DEADLINE_S = 20


class Clocks(Host):
    """Marks that nothing is done before it is asked for."""

    def __init__(self) -> None:
        self._own = threading.local()
        self.read: set[int] = set()
        self.waited: list[Any] = []

    @property
    def clock(self) -> Counter[str]:
        if not hasattr(self._own, "clock"):
            self._own.clock = Counter()
        return self._own.clock

    def mark(self) -> Any:
        self.clock[threading.current_thread().name] += 1
        return self.clock.copy()

    def after(self, mark: Any) -> None:
        self._own.clock = self.clock | mark

    def is_done(self, mark: Any) -> bool:
        return mark in self.waited

    def wait(self, mark: Any) -> None:
        self.waited.append(mark)

    def reads(self, *tensors: Any) -> None:
        self.read |= {id(tensor) for tensor in tensors}


class Stamps:
    """What was made by which thread, and what was used too early."""

    def __init__(self, device: Clocks) -> None:
        self.device = device
        self.made: dict[tuple[Any, ...], tuple[str, int]] = {}
        self.early: list[str] = []
        self.asked: Counter[str] = Counter()

    def make(self, *what: Any) -> None:
        name = threading.current_thread().name
        self.made[what] = name, self.device.clock[name]

    def use(self, by: str, *what: Any) -> None:
        self.asked[f"{what[0]} by {by}"] += 1
        thread, count = self.made[what]
        if thread != threading.current_thread().name and self.device.clock[thread] <= count:
            self.early.append(f"{by} used {what}")


def watched(patch: pytest.MonkeyPatch, stamps: Stamps) -> None:
    """Let the engine's parts say what they make and ask before they use."""
    run, send_rows, update = IdsStage.run, Traffic.send_rows, Traffic.update
    take, run_fast, flush, merge = (
        engine.Engine._take_gradient,
        engine.Engine._run_fast,
        engine.Engine.flush,
        MergeRows.apply,
    )
    updates: list[tuple[Any, ...]] = []
    stepping: list[Any] = []

    def run_ids(self: Any, number: int, before: Any, step: Any, *rest: Any) -> Any:
        verdict = run(self, number, before, step, *rest)
        stamps.make("plan", number)
        if before is not None:
            stamps.make("way back", before.number)
        return verdict

    def send(self: Any, step: Any, groups: Any, *, collision: bool) -> None:
        stamps.use("rows", "plan", step.number)
        for each in list(updates):
            # Exclusive rows wait for all updates up to the step before the last; collision rows, which the last step
            # used too and none deferred since the one before it, for those before and for the last step's collisions.
            first = step.number - 2 if collision else step.number - 1
            if each[1] < first or (collision and each[2] and each[1] < step.number):
                stamps.use("rows", *each)
        send_rows(self, step, groups, collision=collision)
        stamps.make("rows", step.number, collision)

    def apply(self: Any, step: Any, gradients: Any, groups: Any, *, collision: bool) -> None:
        stamps.use("update", "way back", step.number)
        stamps.use("update", "gradient", step.number)
        update(self, step, gradients, groups, collision=collision)
        stamps.make("update", step.number, collision)
        updates.append(("update", step.number, collision))

    def take_gradient(self: Any, step: Any, group: int, gradient: Any) -> None:
        stamps.make("gradient", step.number)
        take(self, step, group, gradient)

    def fast(self: Any, m: int, step: Any) -> Any:
        stepping.append(step)
        return run_fast(self, m, step)

    def merged(anchor: Any, ahead: Any, deliver: Any) -> Any:
        for collision in (False, True):
            stamps.use("forward", "rows", stepping[-1].number, collision)
        assert {id(ahead.buffer), id(ahead.merge.index)} <= stamps.device.read, "memory may be given away"
        return merge(anchor, ahead, deliver)

    def flushed(self: Any) -> None:
        flush(self)
        for each in list(updates):
            stamps.use("flush", *each)

    patch.setattr(comm, "device_of", lambda where: stamps.device)
    for owner, name, function in (
        (IdsStage, "run", run_ids),
        (Traffic, "send_rows", send),
        (Traffic, "update", apply),
        (engine.Engine, "_take_gradient", take_gradient),
        (engine.Engine, "_run_fast", fast),
        (engine.Engine, "flush", flushed),
        (MergeRows, "apply", merged),
    ):
        patch.setattr(owner, name, function)


def raced(rank: int, size: int, config: Any, loop: Any, forget: str) -> tuple[list[str], list[str], dict[str, int]]:
    """What differs from the plain run, what was used too early, and how often it was asked."""
    device = Clocks()
    stamps = Stamps(device)
    with pytest.MonkeyPatch.context() as patch:
        watched(patch, stamps)
        if forget:
            patch.setattr(device, forget, lambda mark: None)
        found, _ = compare(rank, size, config, loop)
    return found, stamps.early, dict(stamps.asked)


ASKED = {
    "plan by rows",
    "update by rows",
    "way back by update",
    "gradient by update",
    "rows by forward",
    "update by flush",
}


@pytest.mark.parametrize("loop", ["base", "accumulation", "without_backward", "left_early", "state_dict_everywhere"])
def test_every_hand_over_between_threads_is_ordered_on_the_device(loop: str) -> None:
    for found, early, asked in shared_world(2).run(raced, CONFIGS["row"], LOOPS[loop], ""):
        assert (found, early) == ([], [])
        assert set(asked) >= ASKED


def test_hand_overs_without_marks_are_noticed() -> None:
    for _, early, _ in shared_world(2).run(raced, CONFIGS["row"], LOOPS["base"], "after"):
        assert {each.split(" used ")[0] for each in early} >= {"rows", "update", "forward", "flush"}


def test_work_runs_behind_its_submitter_and_before_who_takes_the_result() -> None:
    device = Clocks()
    lane = Lane("test", pytest.fail, device=device)
    device.clock["mine"] = 7
    pending = lane.submit(lambda: device.clock.copy())
    seen = pending.result(DEADLINE_S)
    lane.close()
    assert seen["mine"] == 7
    assert device.clock["fscomm test"] == pending.mark["fscomm test"] == 1


class Payload:
    """Something that a weak reference can point to."""


def test_work_under_way_keeps_what_it_uses() -> None:
    device = Clocks()
    lane = Lane("test", pytest.fail, device=device)

    def submitted() -> tuple[Any, weakref.ref[Payload]]:
        held = Payload()

        def work(held: Payload = held) -> None:
            del held

        pending = lane.submit(work)
        pending.result(DEADLINE_S)
        return pending.mark, weakref.ref(held)

    mark, held = submitted()
    lane.submit(lambda: None).result(DEADLINE_S)
    assert held() is not None
    device.wait(mark)
    lane.submit(lambda: None).result(DEADLINE_S)
    lane.submit(lambda: None).result(DEADLINE_S)
    assert held() is None
    lane.close()


def test_closing_waits_for_the_device() -> None:
    device = Clocks()
    lane = Lane("test", pytest.fail, device=device)
    marks = []
    for _ in range(3):
        pending = lane.submit(lambda: None)
        pending.result(DEADLINE_S)
        marks.append(pending.mark)
    lane.close()
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
