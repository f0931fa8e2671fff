"""The warm-up: real gloo ranks, and transports and devices that are wrong in one way each."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE_S
from worlds import shared_world

from fscomm.device import Host
from fscomm.transports import selftest
from fscomm.transports.gloo import GlooTransport
from fscomm.transports.opening import open_transport
from fscomm.transports.selftest import check
from fscomm.transports.transport import AloneTransport, Done
from fsranks.rank_context import resolve

SHORT_S = 0.05  # for what never completes


def gather(text):
    texts = [""] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return texts


class Wrapped:
    """A transport that changes what handles give out or what arrived."""

    def __init__(self, inner, after=None, handle=None, spoils=range(100)):
        self.inner, self.after, self.handle, self.spoils = inner, after, handle, spoils
        self.number = -1
        self.name, self.rank, self.world_size = inner.name, inner.rank, inner.world_size

    def all_to_all_v(self, out, inp, out_splits, in_splits):
        return self.wrap(self.inner.all_to_all_v(out, inp, out_splits, in_splits), out, out_splits)

    def all_gather(self, out, inp):
        return self.wrap(self.inner.all_gather(out, inp), out, [len(inp)] * self.world_size)

    def wrap(self, handle, out, splits):
        self.number += 1
        if self.after is not None and self.number in self.spoils:
            handle = After(handle, lambda: self.after(out, splits))
        return handle if self.handle is None else self.handle(handle)


class After:
    """Once the rows are there, `spoil` them."""

    def __init__(self, handle, spoil):
        self.handle, self.spoil = handle, spoil

    def done(self):
        return self.handle.done()

    def wait(self):
        self.handle.wait()
        self.spoil()


class Queued:
    """Done by a kernel, which begins only when nobody holds the SMs of `device`."""

    def __init__(self, handle, device):
        self.handle, self.device = handle, device

    def done(self):
        return not self.device.held and self.handle.done()

    def wait(self):
        assert not self.device.held, "this would wait for ever"
        self.handle.wait()


class FakeSms:
    """A device whose SMs are held by saying so."""

    def __init__(self, *, holds=True, copies=True, fails=None):
        self.holds, self.copies, self.fails = holds, copies, fails
        self.held = False

    @contextlib.contextmanager
    def hold_all_sms(self):
        if self.fails is not None:
            raise RuntimeError(self.fails)
        self.held = self.holds
        try:
            yield
        finally:
            self.held = False

    def sm_copy(self):
        return lambda: self.copies and not self.held


def swap_two_rows(out, splits):
    """Of the largest piece."""
    if max(splits) > 1:
        first = sum(splits[: splits.index(max(splits))])
        out[[first, first + 1]] = out[[first + 1, first]]


def drop_a_part(out, splits):
    """What rank 0 sent stays as it was before."""
    out[: splits[0]].fill_(float("nan") if out.dtype == torch.float32 else 77)


def swap_two_ranks(out, splits):
    if splits[0] and splits[0] == splits[1]:
        out[: 2 * splits[0]] = torch.cat([out[splits[0] : 2 * splits[0]], out[: splits[0]]])


def repeat_a_row(out, splits):
    if len(out) > 1 and splits[-1] > 1:
        out[-1] = out[-2]


def real(rank, world_size, name):
    transport = open_transport(name, resolve(), Host(), timeout_s=PATIENCE_S)
    try:
        return check(transport, Host(), gather=gather, engagement=FakeSms())
    finally:
        transport.close("the test is over")


@pytest.mark.parametrize("name", ["copy-engine", "host-staged"])
def test_transports_of_the_host_pass(name):
    assert shared_world(2).run(real, name) == [None] * 2


SPOILED = {f.__name__: f for f in (swap_two_rows, drop_a_part, swap_two_ranks, repeat_a_row)}


def run(rank, world_size, *, after=None, at=None, spoils=range(100), sms=None, takes_sms_at=(), bound_s=PATIENCE_S):
    """`check` of gloo; `after` spoils the rows of the operations `spoils` on rank `at`, kernels carry all rows on the
    ranks `takes_sms_at`.
    """
    inner = GlooTransport(resolve(), timeout_s=PATIENCE_S)
    transport = Wrapped(
        inner,
        after=SPOILED[after] if rank == at else None,
        spoils=spoils,
        handle=(lambda handle: Queued(handle, sms)) if rank in takes_sms_at else None,
    )
    try:
        return check(transport, Host(), gather=gather, engagement=sms, bound_s=bound_s)
    finally:
        inner.close("the test is over")


def without_a_device(rank, world_size, after, at):
    return run(rank, world_size, after=after, at=at)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_rows_that_arrive_pass(size):
    assert shared_world(size).run(without_a_device, None, None) == [None] * size


@pytest.mark.parametrize("after", SPOILED)
@pytest.mark.parametrize(("size", "at"), [(2, 0), pytest.param(3, 2, marks=pytest.mark.long)])
def test_rows_that_do_not_are_named_alike_on_all_ranks(after, size, at):
    answers = shared_world(size).run(without_a_device, after, at)
    assert len(set(answers)) == 1
    assert answers[0].startswith(f"on rank {at}: ")
    assert "rows from rank" in answers[0]
    assert "are not what was sent" in answers[0]


def names_the_sender(rank, world_size):
    return run(rank, world_size, after="drop_a_part", at=1)


def test_the_sender_is_named():
    assert shared_world(3).run(names_the_sender)[2].endswith("rows from rank 0 are not what was sent")


def spoiled_on_a_device(rank, world_size, spoils):
    return run(rank, world_size, after="swap_two_rows", at=1, spoils=spoils, sms=FakeSms())


@pytest.mark.parametrize("spoils", [range(1), range(13, 14)], ids=["before", "while the SMs are held"])
def test_rows_count_on_a_device_too(spoils):
    answers = shared_world(2).run(spoiled_on_a_device, spoils)
    name = "few rows" if 0 in spoils else "large pieces"
    assert answers == [f"on rank 1: all-to-all of {name}: rows from rank 0 are not what was sent"] * 2


def on_a_device(rank, world_size, options, takes_sms_at, bound_s):
    """options: of the ranks' devices, by rank; others work."""
    return run(rank, world_size, sms=FakeSms(**options.get(rank, {})), takes_sms_at=takes_sms_at, bound_s=bound_s)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_what_needs_no_sm_passes(size):
    assert shared_world(size).run(on_a_device, {}, (), PATIENCE_S) == [None] * size


@pytest.mark.parametrize(
    ("takes_sms_at", "limit_s"),
    [((0, 1, 2), SHORT_S), pytest.param((1,), 2.0, marks=pytest.mark.long)],  # the rows of other ranks come within this
)
def test_a_fall_back_to_kernels_is_caught(takes_sms_at, limit_s):
    answers = shared_world(3).run(on_a_device, {}, takes_sms_at, limit_s)
    ranks = "rank 1" if takes_sms_at == (1,) else "ranks 0, 1, 2"
    assert (
        answers
        == [f"on {ranks}: with every SM held by a kernel, rows did not arrive within {limit_s:g} s: kernels carry them"]
        * 3
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"holds": False}, "a copy by a kernel was done while all were meant to be held"),
        pytest.param({"copies": False}, "the copy by a kernel was never done", marks=pytest.mark.long),
        ({"fails": "another process uses it"}, "on rank 1: RuntimeError: another process uses it"),
    ],
    ids=["not held", "no control", "cannot be held"],
)
def test_what_proves_nothing_does_not_pass(options, words):
    answers = shared_world(2).run(on_a_device, {1: options}, (), 1.0)
    assert len(set(answers)) == 1
    assert "could not be tested" in answers[0]
    assert "on rank 1: " in answers[0]
    assert words in answers[0]


def nobody_lets_go_early(rank, world_size):
    """Rank 0 is through at once, rank 1 late: what rank 0 still has to send must find its SMs held."""
    sms = FakeSms()
    seen = []

    class Slow:
        def __init__(self, handle):
            self.handle, self.asked = handle, 0

        def done(self):
            self.asked += 1
            return (not sms.held or self.asked > 100) and self.handle.done()

        def wait(self):
            self.handle.wait()

    def told(text):
        texts = gather(text)
        seen.append(sms.held)
        return texts

    inner = GlooTransport(resolve(), timeout_s=PATIENCE_S)
    transport = Wrapped(inner, handle=Slow if rank == 1 else None)
    try:
        return check(transport, Host(), gather=told, engagement=sms, bound_s=PATIENCE_S), seen
    finally:
        inner.close("the test is over")


def test_all_hold_until_all_are_through():
    """After the rows alone; after all hold; after all moved; at the end."""
    assert shared_world(2).run(nobody_lets_go_early) == [(None, [False, True, True, False])] * 2


class Recording(AloneTransport):
    """Moves nothing; notes whether what it is to fill holds poison only."""

    world_size = 2

    def __init__(self):
        super().__init__("gloo")
        self.poisoned = []

    def all_to_all_v(self, out, inp, out_splits, in_splits):
        self.poisoned.append(bool((out != out).all() or (out == -1).all() or (out == 255).all()))
        return Done()

    def all_gather(self, out, inp):
        return self.all_to_all_v(out, inp, [], [])


def test_what_is_to_be_filled_is_poisoned_before(monkeypatch):
    """Else rows of the time before would pass for new ones."""
    monkeypatch.setattr(
        selftest.Operation, "problem", lambda operation: "" if operation.out.zero_() is not None else "-"
    )
    transport = Recording()
    assert check(transport, Host(), gather=lambda text: [text, ""], engagement=FakeSms()) is None
    assert transport.poisoned == [True] * 9 + [False] * 4 + [True]


class Failing:
    name, rank = "gloo", 0

    def __init__(self, world_size):
        self.world_size = world_size

    def all_to_all_v(self, out, inp, out_splits, in_splits):
        raise ValueError("not today")

    all_gather = all_to_all_v


def test_an_error_is_a_verdict():
    told = []

    def others_are_well(text):
        told.append(text)
        return [text, ""]

    assert check(Failing(2), Host(), gather=others_are_well) == "on rank 0: ValueError: not today"
    assert told == ["ValueError: not today"]


def test_of_a_verdict_elsewhere_this_rank_hears(monkeypatch):
    monkeypatch.setattr(selftest, "_move", lambda *_: "")
    assert check(Failing(3), Host(), gather=lambda text: [text, "", "bad"]) == "on rank 2: bad"


def test_the_only_rank_has_nothing_to_show():
    assert check(AloneTransport("nccl"), Host(), gather=lambda text: [text], engagement=FakeSms(fails="no")) is None


@pytest.mark.parametrize("world_size", [2, 5])
def test_rows_tell_where_they_come_from(world_size):
    """What ranks send is what their peers expect, no two pieces are alike, and the sizes are those that matter."""
    ranks = [selftest.operations(rank, world_size, torch.device("cpu")) for rank in range(world_size)]
    assert max(op.inp.nbytes for op in ranks[0]) == ranks[0][-1].inp.nbytes > 9 << 20
    kinds = set()
    for number in range(len(ranks[0])):
        of = [operations[number] for operations in ranks]
        assert len({op.name for op in of}) == 1
        for rank, op in enumerate(of):
            if op.in_splits is None:
                assert torch.equal(op.sent[rank], op.inp)
                continue
            parts = op.inp.split(op.in_splits)
            assert all(torch.equal(parts[to], of[to].sent[rank]) for to in range(world_size))
            op.poison()
            assert not len(op.out) or "are not what was sent" in op.problem()
            kinds |= {"none" if len(part) == 0 else "uneven" for part in parts}
            kinds |= {"empty"} if not len(op.inp) else set()
        pieces = [part.tobytes() for op in of for part in map(torch.Tensor.numpy, op.sent) if part.size > 3]
        assert len(set(pieces)) == (len(pieces) if of[0].in_splits is not None else len(pieces) // world_size)
    assert kinds == {"none", "uneven", "empty"}


@pytest.mark.long
def test_the_spinning_kernel_ends_by_flag_and_by_limit():
    """Through Triton's interpreter, where its clock is a count of turns."""
    pytest.importorskip("triton", reason="needs triton")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("spin_interpreted.py"))],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["3", "5", "528", "246"]
