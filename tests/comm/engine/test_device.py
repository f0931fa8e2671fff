"""What waits for what on a device. No GPU takes part.

Whether streams use memory in order is for `tests/comm/exchange/test_stream_order.py`.
"""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from clocks import Clocks
from exact import Run, compare, new_run
from exact_configs import CONFIGS
from exact_kinds import TWO, without_gradients
from exact_model import Batch, Config, build
from patience import PATIENCE_S
from worlds import shared_world

import fscomm
from fscomm import comm, device
from fscomm.device import CAPTURED, CudaDevice, Host
from fscomm.exchange import executor
from fscomm.exchange.operations import Class
from fscomm.exchange.rows import RowExchange
from fscomm.loop import moving
from fscomm.transports.opening import STREAMS, open_transport


class Slow(Clocks):
    """A device that the host runs ahead of, in virtual time: a stream is at the latest time that it waited for."""

    def __init__(self) -> None:
        super().__init__(done_share=0.5, runs_ahead=True)
        self.times: Counter[str] = Counter()  # in seconds, by stream

    def work(self, seconds: float) -> None:
        self.times[self.current.name] += seconds

    def mark(self) -> Any:
        made: Any = super().mark()
        made.time = self.times[self.current.name]
        return made

    def after(self, mark: Any) -> None:
        super().after(mark)
        if mark is not None:
            self.times[self.current.name] = max(self.times[self.current.name], mark.time)

    def instant(self) -> float:
        return self.times[self.current.name]


def exposed(rank: int, size: int, rows_s: float, optimizer_s: float) -> list[float]:
    """By step the milliseconds that the report calls exposed of collision rows, which take `rows_s` on the device."""
    device, fetch = Slow(), RowExchange.fetch
    reports: list[Any] = []

    def slow_fetch(self: RowExchange, *args: Any) -> None:
        fetch(self, *args)
        device.work(rows_s if self._class is Class.COLLISION else 0.0)

    def loop(run: Run) -> None:
        with run.enable() as comm:
            for step, batch in enumerate(comm.lookahead(run.loader())):
                run.train(step, batch)
                device.work(optimizer_s)
        reports.append(comm.report())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comm, "device_of", lambda where: device)
        patch.setattr(RowExchange, "fetch", slow_fetch)
        loop(new_run(rank, size, CONFIGS["row"].but(steps=8), "fscomm"))
    return [each.exposed_ms.get("collision rows", 0.0) for each in reports[0].steps]


@pytest.mark.parametrize(("rows_s", "optimizer_s", "exposed_ms"), [(0.010, 0.004, 6), (0.010, 0.040, 0)])
def test_the_report_says_how_long_compute_stood_still(rows_s: float, optimizer_s: float, exposed_ms: float) -> None:
    """Rows are fetched from backward on; the optimizer step hides its own length of that."""
    for by_step in shared_world(2).run(exposed, rows_s, optimizer_s):
        assert by_step[2:] == pytest.approx([exposed_ms] * 6, rel=0.1, abs=1e-6)


def looked_up_beside(rank: int, size: int) -> bool:
    """Whether module b, which is not trained, gave its rows while a pending update of module a was under way."""
    config = Config(modules=TWO, static_graph=False, builder=without_gradients, steps=5)
    run = new_run(rank, size, config, "fscomm")
    may_update = threading.Event()
    gave_up: list[bool] = []
    update = RowExchange.update

    def held(self: RowExchange, *args: Any) -> None:
        if self._class is Class.EXCLUSIVE:
            gave_up.append(not may_update.wait(PATIENCE_S))
        update(self, *args)

    may_update.set()
    with pytest.MonkeyPatch.context() as patch, run.enable() as comm:
        patch.setattr(RowExchange, "update", held)
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step == 4:
                comm.flush()  # updates before this one are over
                may_update.clear()
            run.train(step, batch)
            if step == 4:
                with torch.no_grad():
                    dict(run.model.module.embeddings["b"](batch.ids["b"]).items())
                may_update.set()
    return bool(gave_up) and not any(gave_up)


def test_a_module_waits_for_updates_of_its_own() -> None:
    assert shared_world(2).run(looked_up_beside) == [True, True]


def not_on_a_gpu(rank: int, size: int) -> dict[str, str]:
    model, _ = build(CONFIGS["row"], size)
    with pytest.raises(fscomm.NotServedError, match="nccl moves rows between GPUs, these are on the CPU"):
        fscomm.enable(model, transport="nccl", strict=True).__enter__()
    with fscomm.enable(model, transport="nccl") as served:
        pass
    return dict(served.report().fallbacks)


def test_tables_elsewhere_than_the_transport_is_for_run_plainly() -> None:
    for said in shared_world(2).run(not_on_a_gpu):
        assert list(said) == ["embeddings.a"]
        assert said["embeddings.a"].startswith("there is no transport for these rows (transport='nccl'): nccl moves")


class Counted(Clocks):
    """Counts the streams that were made: those of threads, too."""

    def __init__(self) -> None:
        super().__init__(runs_ahead=True)
        self.made = self.released = 0

    def enter(self, *, priority: int = 0) -> None:
        self.made += 1

    def release(self) -> None:
        self.released += 1

    def stream(self, *, priority: int = 0) -> Any:
        self.made += 1
        return super().stream(priority=priority)


def evaluated(rank: int, size: int) -> tuple[list[bool], int, int, int]:
    """Which transports were urgent; streams of a block, and those after 3 evaluations in it; how often they were
    released."""
    device, urgent = Counted(), list[bool]()
    model, _ = build(CONFIGS["row"], size)

    def opened(name: str, context: Any, of: Any, **options: Any) -> Any:
        if of is device:  # and not that of the trial of a version
            urgent.append(options.get("urgent", False))
        return open_transport(name, context, of, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comm, "device_of", lambda where: device)
        patch.setattr(moving, "device_of", lambda where: device)
        patch.setattr(executor, "open_transport", opened)
        with fscomm.enable(model, transport="host-staged", timeout_s=PATIENCE_S) as served:
            of_block = device.made
            for _ in range(3):
                assert len(list(served.lookahead([torch.ones(1)], torch.device("cpu")))) == 1
            assert device.released == 0
    return urgent, of_block, device.made, device.released


def test_evaluations_take_one_stream_and_a_block_no_more_than_there_are_queues_for() -> None:
    for urgent, of_block, after, released in shared_world(2).run(evaluated):
        assert released == 2  # those of the engine, and that of the look-aheads
        assert urgent == [True, False, False]  # collision rows; exclusive rows; their gradients
        assert after == of_block + 1
        assert 9 < of_block < STREAMS  # three of each transport, and those of workers and classes


# What CUDA's side of `fscomm.device` asks of torch, on torch without a GPU.

WHERE = torch.device("cuda", 0)


class Mark:
    """An event that is done when it was asked for so often."""

    def __init__(self, asks: float) -> None:
        self.asks = asks

    def query(self) -> bool:
        self.asks -= 1
        return self.asks <= 0


def test_waiting_ends_when_the_device_is_done_and_at_the_latest_at_the_limit() -> None:
    device = CudaDevice(WHERE)
    device.wait(Mark(1), 0.0)
    device.wait(Mark(20), 60.0)
    with pytest.raises(TimeoutError, match=r"cuda:0 did not come to the end .* within 0.05 s.*raise timeout_s"):
        device.wait(Mark(float("inf")), 0.05)


def test_blocks_use_the_streams_of_the_blocks_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch hands out 32 in turn: then a new one is the one of somebody else."""
    made, used = list[int](), list[set[int]]()

    class FakeStream:
        def __init__(self, where: torch.device, priority: int = 0) -> None:
            self.priority = priority
            made.append(priority)

    def block() -> set[int]:
        """With two workers, a stream, and an urgent one."""
        cuda, entered = CudaDevice(WHERE), list[Any]()
        workers = [ThreadPoolExecutor(1) for _ in range(2)]
        monkeypatch.setattr(torch.cuda, "set_stream", entered.append)
        for worker in workers:
            worker.submit(cuda.enter).result()
        contexts = [cuda.stream(), cuda.stream(priority=-1)]
        for worker in workers:
            worker.shutdown()
        cuda.release()
        streams = [*entered, *(context.stream for context in contexts)]
        assert [stream.priority for stream in streams] == [0, 0, 0, -1]
        return {id(stream) for stream in streams}

    monkeypatch.setattr(device, "_FREE", {})
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda where: None)
    monkeypatch.setattr(torch.cuda, "_get_device_index", lambda *_: 0)
    for _ in range(20):
        used.append(block())
    assert sorted(made) == [-1, 0, 0, 0]
    assert all(len(streams) == 4 for streams in used)
    assert set.union(*used) == used[0]


def test_tensors_go_to_the_device_by_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[torch.Tensor] = []

    def copied(self: torch.Tensor, where: torch.device, *, non_blocking: bool) -> torch.Tensor:
        copies.append(self)
        return self.clone()

    device, empty = CudaDevice(WHERE), torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory, **options: empty(*shape, **options))
    monkeypatch.setattr(torch.Tensor, "to", copied)
    given = [torch.arange(5), torch.ones(3, 2, dtype=torch.float16), torch.empty(0, pin_memory=True), torch.tensor([7])]
    given.append(torch.from_numpy(np.empty(0, np.int64)))  # its stride is 0 (numpy 2.4)
    there = device.put(given)
    assert len(copies) == 1
    assert device.put([]) == []
    for one, other in zip(given, there, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("use", [lambda device: device.mark(), lambda device: device.after(Mark(1))])
def test_a_stream_whose_work_goes_into_a_graph_is_refused(monkeypatch: pytest.MonkeyPatch, use: Any) -> None:
    issued: list[str] = []
    stream = SimpleNamespace(record_event=lambda: issued.append("record"), wait_event=lambda _: issued.append("wait"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda where: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="a CUDA graph is being captured"):
        use(CudaDevice(WHERE))
    assert issued == []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    use(CudaDevice(WHERE))
    assert len(issued) == 1


class Capturing(Host):
    """One thread issues into a CUDA graph."""

    thread: int | None = None

    def mark(self) -> None:
        self.refuse_capture()

    def after(self, mark: Any) -> None:
        self.refuse_capture()

    def refuse_capture(self) -> None:
        if threading.get_ident() == self.thread:
            raise RuntimeError(CAPTURED)


def captures_too_much(run: Run, device: Capturing) -> None:
    """Before the first step, and between two steps, the loop tries to capture the whole model, then goes on without."""

    def capture(batch: Batch) -> None:
        device.thread = threading.get_ident()
        with pytest.raises(RuntimeError, match="Capture only what uses no tables"):
            run.model(batch)
        device.thread = None

    with run.enable() as comm:
        if run.mode == "fscomm":
            capture(run.loader()[0])
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if run.mode == "fscomm" and step == 3:
                capture(batch)
            run.train(step, batch)


def compare_with(rank: int, size: int, config: Config) -> tuple[list[str], dict[str, Any]]:
    device = Capturing()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comm, "device_of", lambda where: device)
        return compare(rank, size, config, partial(captures_too_much, device=device))


def test_a_forward_in_a_capture_is_refused_and_the_loop_goes_on() -> None:
    config = CONFIGS["row"].but(steps=6)
    for found, said in shared_world(2).run(compare_with, config):
        assert found == []
        assert said["fallbacks"] == {}
        assert said["report"]["forwards"]["embeddings.a"]["served"] == config.steps - 1


def test_an_event_that_may_not_be_asked_for_during_a_capture_says_so() -> None:
    mark = Mark(1)
    for said, told in (
        ("operation not permitted when stream is capturing", "a CUDA graph is being captured"),
        ("an illegal memory access was encountered", "illegal memory access"),
    ):
        mark.query = Mock(side_effect=RuntimeError(f"CUDA error: {said}"))  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match=told):
            CudaDevice(WHERE).is_done(mark)
