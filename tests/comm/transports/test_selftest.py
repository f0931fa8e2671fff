"""The warm-up, of ranks that are threads: transports and devices that are wrong in one way each."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from patience import PATIENCE_S

from fscomm.device import Host
from fscomm.transports import selftest
from fscomm.transports.selftest import check
from fscomm.transports.transport import AloneTransport, Done, Handle

IN_THE_TRIAL = 13  # the number of the operation that is done while all SMs are held


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "LARGE_BYTES", 2000)


class Board:
    """Where ranks meet: what each gives is seen by all."""

    def __init__(self, size: int) -> None:
        self.size, self._barrier, self._given = size, threading.Barrier(size), [None] * size

    def exchange(self, rank: int, mine: Any) -> list[Any]:
        self._given[rank] = mine
        self._barrier.wait(PATIENCE_S)
        found = list(self._given)
        self._barrier.wait(PATIENCE_S)
        return found


class InMemory:
    """A transport that spoils the rows of some operations, and puts other handles in the place of its own."""

    name = "in memory"

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.world_size = board, rank, board.size
        self.spoil: Callable[[torch.Tensor, list[int], torch.Tensor], object] = lambda *_: None
        self.spoils: range = range(100)
        self.handle: Callable[[Handle], Any] = lambda handle: handle
        self.poisoned: list[int] = []  # the operations whose `out` held nothing that could pass for rows
        self._number = -1

    def all_to_all_v(
        self, out: torch.Tensor, inp: torch.Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> Handle:
        return self._fill(out, inp.split(list(in_splits)), list(out_splits))

    def all_gather(self, out: torch.Tensor, inp: torch.Tensor) -> Handle:
        return self._fill(out, [inp] * self.world_size, [len(inp)] * self.world_size)

    def _fill(self, out: torch.Tensor, sent: Sequence[torch.Tensor], splits: list[int]) -> Handle:
        self._number += 1
        before = out.clone()
        if bool(((out != out) | (out == -1) | (out == 255)).all()):
            self.poisoned.append(self._number)
        out.copy_(torch.cat([of_rank[self.rank] for of_rank in self.board.exchange(self.rank, sent)]))
        if self._number in self.spoils:
            self.spoil(out, splits, before)
        return self.handle(Done())


class FakeSms:
    """A device whose SMs are held by saying so; `seen`: whether they were, when the ranks told each other."""

    def __init__(self, *, holds: bool = True, copies: bool = True, fails: str = "") -> None:
        self.holds, self.copies, self.fails = holds, copies, fails
        self.held = False
        self.seen: list[bool] = []

    @contextlib.contextmanager
    def hold_all_sms(self) -> Iterator[None]:
        if self.fails:
            raise RuntimeError(self.fails)
        self.held = self.holds
        try:
            yield
        finally:
            self.held = False

    def sm_copy(self) -> Callable[[], bool]:
        return lambda: self.copies and not self.held


class Queued:
    """Done by a kernel, which begins only when nobody holds the SMs of `device`."""

    def __init__(self, device: FakeSms) -> None:
        self.device = device

    def done(self) -> bool:
        return not self.device.held

    def wait(self) -> None:
        assert not self.device.held, "this would wait for ever"


def verdicts(
    size: int,
    devices: dict[int, FakeSms] | None = None,
    *,
    bound_s: float = PATIENCE_S,
    change: Callable[[InMemory], object] = lambda transport: None,
) -> list[str | None]:
    """Of all ranks; without `devices` rows alone are looked at."""
    board, found = Board(size), {}

    def run(rank: int) -> None:
        transport, device = InMemory(board, rank), devices and devices[rank]
        change(transport)

        def gather(text: str) -> list[str]:
            texts = board.exchange(rank, text)
            if device is not None:
                device.seen.append(device.held)
            return texts

        found[rank] = check(transport, Host(), gather=gather, engagement=device, bound_s=bound_s)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


def sms(size: int, **others: FakeSms) -> dict[int, FakeSms]:
    return {rank: others.get(f"r{rank}", FakeSms()) for rank in range(size)}


@pytest.mark.parametrize("size", [2, 3])
def test_rows_that_arrive_without_sms_pass(size: int, small_pieces: None) -> None:
    assert verdicts(size) == [None] * size
    transports: list[InMemory] = []
    assert verdicts(size, sms(size), change=transports.append) == [None] * size
    for transport in transports:
        assert transport.poisoned == [*range(9), IN_THE_TRIAL]


def test_the_last_operation_is_larger_than_slots_and_buffers() -> None:
    assert max(op.inp.nbytes for op in selftest.operations(0, 2, torch.device("cpu"))[-1:]) > 9 << 20


def swap_two_rows(out: torch.Tensor, splits: list[int], before: torch.Tensor) -> None:
    """Of the largest piece."""
    if max(splits) > 1:
        first = sum(splits[: splits.index(max(splits))])
        out[[first, first + 1]] = out[[first + 1, first]]


def drop_a_part(out: torch.Tensor, splits: list[int], before: torch.Tensor) -> None:
    """What rank 0 sent stays as it was before."""
    out[: splits[0]] = before[: splits[0]]


def swap_two_ranks(out: torch.Tensor, splits: list[int], before: torch.Tensor) -> None:
    if splits[0] and splits[0] == splits[1]:
        out[: 2 * splits[0]] = torch.cat([out[splits[0] : 2 * splits[0]], out[: splits[0]]])


def repeat_a_row(out: torch.Tensor, splits: list[int], before: torch.Tensor) -> None:
    if len(out) > 1 and splits[-1] > 1:
        out[-1] = out[-2]


def spoiling(how: Any, at: int, spoils: range = range(100)) -> Callable[[InMemory], None]:
    def change(transport: InMemory) -> None:
        if transport.rank == at:
            transport.spoil, transport.spoils = how, spoils

    return change


@pytest.mark.parametrize("how", [swap_two_rows, drop_a_part, swap_two_ranks, repeat_a_row])
def test_rows_that_do_not_arrive_are_named_alike_on_all_ranks(how: Any, small_pieces: None) -> None:
    answers = verdicts(3, change=spoiling(how, at=2))
    assert len(set(answers)) == 1
    assert answers[0] is not None
    assert answers[0].startswith("on rank 2: ")
    assert "rows from rank" in answers[0]
    assert answers[0].endswith("are not what was sent")
    assert how is not drop_a_part or "rows from rank 0 are" in answers[0]


@pytest.mark.parametrize(
    ("spoils", "how", "where"),
    [
        (range(1), swap_two_rows, "few rows"),
        (range(IN_THE_TRIAL, IN_THE_TRIAL + 1), swap_two_rows, "large pieces"),
        (range(IN_THE_TRIAL, IN_THE_TRIAL + 1), drop_a_part, "large pieces"),  # nor do rows of the time before pass
    ],
)
def test_rows_count_on_a_device_too(spoils: range, how: Any, where: str, small_pieces: None) -> None:
    said = f"on rank 1: all-to-all of {where}: rows from rank 0 are not what was sent"
    assert verdicts(2, sms(2), change=spoiling(how, 1, spoils)) == [said] * 2


@pytest.mark.parametrize("at", [(0, 1, 2), (1,)])
def test_a_fall_back_to_kernels_is_caught(at: tuple[int, ...], small_pieces: None) -> None:
    devices = sms(3)

    def change(transport: InMemory) -> None:
        if transport.rank in at:
            transport.handle = lambda handle: Queued(devices[transport.rank])

    ranks = "rank 1" if at == (1,) else "ranks 0, 1, 2"
    said = f"on {ranks}: with every SM held by a kernel, rows did not arrive within 0 s: kernels carry them"
    assert verdicts(3, devices, bound_s=0.0, change=change) == [said] * 3


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (FakeSms(holds=False), "a copy by a kernel was done while all were meant to be held"),
        (FakeSms(copies=False), "the copy by a kernel was never done"),
        (FakeSms(fails="another process uses it"), "on rank 1: RuntimeError: another process uses it"),
    ],
    ids=["not held", "no control", "cannot be held"],
)
def test_what_proves_nothing_does_not_pass(device: FakeSms, words: str, small_pieces: None) -> None:
    answers = verdicts(2, sms(2, r1=device), bound_s=0.0)
    assert len(set(answers)) == 1
    assert answers[0] is not None
    assert "could not be tested" in answers[0]
    assert "on rank 1: " in answers[0]
    assert words in answers[0]


def test_all_hold_until_all_are_through(small_pieces: None) -> None:
    """Rank 0 is through at once, rank 1 late: what rank 0 still has to send must find its SMs held."""
    devices = sms(2)

    class Slow(Done):
        asked = 0

        def done(self) -> bool:
            self.asked += 1
            return self.asked > 100

    def change(transport: InMemory) -> None:
        if transport.rank == 1:
            transport.handle = lambda handle: Slow()

    assert verdicts(2, devices, change=change) == [None] * 2
    for device in devices.values():
        assert device.seen == [False, True, True, False]  # after the rows alone, all hold, all moved, at the end


def test_errors_and_verdicts_elsewhere_are_heard() -> None:
    class Failing(AloneTransport):
        world_size = 3

        def all_to_all_v(self, *given: Any) -> Handle:
            raise ValueError("not today")

    told = []

    def gather(text: str) -> list[str]:
        told.append(text)
        return [text, "", "bad"]

    verdict = check(Failing("gloo"), Host(), gather=gather, engagement=FakeSms())
    assert verdict == "on rank 0: ValueError: not today; on rank 2: bad"
    assert told == ["ValueError: not today"]


def test_the_only_rank_has_nothing_to_show() -> None:
    assert check(AloneTransport("nccl"), Host(), gather=lambda text: [text], engagement=FakeSms(fails="no")) is None


SPIN = """
import torch
from fscomm.transports.spin import launch, programs
flag, arrived = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
launch(flag, arrived, count=3, limit=1 << 40)  # the flag ends it: this many turns would take days
print(int(arrived))
flag.zero_()
launch(flag, arrived, count=2, limit=50)  # nobody sets the flag: the limit ends it
print(int(arrived))
print(programs(132, 2048), programs(82, 1536))
"""


@pytest.mark.long
def test_the_spinning_kernel_ends_by_flag_and_by_limit() -> None:
    """Through Triton's interpreter, where its clock is a count of turns."""
    pytest.importorskip("triton", reason="needs triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", SPIN], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["3", "5", "528", "246"]
