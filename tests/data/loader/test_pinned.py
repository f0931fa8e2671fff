"""`pin_memory`: batches are made in page-locked memory; only what `adapt` makes goes through a pinning thread.

No GPU is needed: an allocation that remembers its memory stands in for torch's.
"""

from unittest import mock

import pytest
import torch
from data_kit import assert_same, tensors
from rank_loaders import loader_on

from fsdata.batch.host_memory import PageLockedMemory
from fsdata.batch.prefetch import Prefetcher


class Locked:
    """Allocates, and keeps what it allocated."""

    def __init__(self):
        self.storages = {}

    def __call__(self, count, dtype):
        tensor = torch.empty(count, dtype=dtype)
        self.storages[tensor.untyped_storage()._cdata] = tensor
        return tensor

    def has(self, tensor):
        return any(each.data_ptr() == tensor.untyped_storage().data_ptr() for each in self.storages.values())


@pytest.fixture
def locked(monkeypatch):
    locked = Locked()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("fsdata.nodes.batches.PageLockedMemory", lambda: PageLockedMemory(locked))
    return locked


@pytest.mark.parametrize("prefetch", [0, 2])
def test_every_tensor_lies_in_page_locked_memory(folder, locked, prefetch):
    with loader_on(folder, shuffle=True, prefetch=prefetch) as plain:
        wanted = list(plain)
    with (
        loader_on(folder, shuffle=True, prefetch=prefetch, pin_memory=True) as loader,
        mock.patch("fsdata.loader.Prefetcher", wraps=Prefetcher) as ahead,
    ):
        found = list(loader)
    assert not ahead.call_args.kwargs["pin"]
    assert len(wanted) > 0
    assert_same(found, wanted)
    assert all(locked.has(tensor) for batch in found for tensor in tensors(batch).values() if tensor.numel())


def test_what_adapt_makes_is_pinned_by_a_thread(folder, locked):
    pins = []

    def ahead(make, *, depth, pin):
        pins.append(pin)
        return Prefetcher(make, depth=depth, pin=False)  # a pinning thread needs CUDA

    with (
        loader_on(folder, pin_memory=True, adapt=lambda batch: {"rows": batch.features.values() + 1}) as loader,
        mock.patch("fsdata.loader.Prefetcher", ahead),
    ):
        assert len(list(loader)) > 0
    assert pins == [True]


@pytest.fixture
def cuda(monkeypatch):
    """A CUDA that starts when the test says so, and may be asked for nothing but whether it has started."""

    def refused():
        raise AssertionError("starts CUDA, which children forked from this process could then not use")

    started = [False]
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: started[0])
    for name in ("is_available", "device_count", "current_device", "init"):
        monkeypatch.setattr(f"torch.cuda.{name}", refused)
    return started


def epoch(loader, locked):
    """The batches, of which all or no tensors are page-locked: and whether they are."""
    batches = list(loader)
    (all_alike,) = {locked.has(each) for batch in batches for each in tensors(batch).values() if each.numel()}
    return batches, all_alike


def test_by_default_batches_are_page_locked_once_the_process_uses_a_gpu(folder, locked, cuda):
    with loader_on(folder, shuffle=True) as loader, loader_on(folder, shuffle=True, pin_memory=False) as never:
        (one, on_cpu), (plain, _) = epoch(loader, locked), epoch(never, locked)
        assert locked.storages == {}  # a loop on the CPU takes no memory of a GPU
        cuda[0] = True
        (two, on_gpu), (plain_too, still_not) = epoch(loader, locked), epoch(never, locked)
    assert (on_cpu, on_gpu, still_not) == (False, True, False)
    assert_same([*one, *two], [*plain, *plain_too])


@pytest.mark.parametrize("started", [False, True])
def test_by_default_what_adapt_makes_is_pinned_once_the_process_uses_a_gpu(folder, locked, cuda, started):
    cuda[0] = started
    pins = []

    def ahead(make, *, depth, pin):
        pins.append(pin)
        return Prefetcher(make, depth=depth, pin=False)  # a pinning thread needs CUDA

    with (
        loader_on(folder, adapt=lambda batch: {"rows": batch.features.values() + 1}) as loader,
        mock.patch("fsdata.loader.Prefetcher", ahead),
    ):
        assert len(list(loader)) > 0
    assert pins == [started]
