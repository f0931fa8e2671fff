"""`pin_memory=True`: batches are made in page-locked memory; only what `adapt` makes goes through a pinning thread.

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
    monkeypatch.setattr("fsdata.loader.can_pin", lambda wanted: wanted)
    monkeypatch.setattr("fsdata.loader.PageLockedMemory", lambda: PageLockedMemory(locked))
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
