"""Pooled buffers: never two users of one buffer, used again afterwards, as many as were in use at once."""

import gc
import threading

import numpy as np
import pytest
import torch

from fsdata.batch.host_memory import Reused
from fsdata.decode.reused_buffers import Pool


def test_a_buffer_is_used_again_only_when_the_last_view_is_gone():
    pool = Reused(Pool())
    tensor = pool.tensor(100_000, torch.int64)
    address = tensor.data_ptr()
    assert address % 64 == 0
    tail = tensor[5:]
    del tensor
    other = pool.tensor(100_000, torch.int64)
    assert other.data_ptr() != address
    del tail
    gc.collect()
    assert pool.tensor(90_000, torch.int64).data_ptr() == address


def test_larger_requests_replace_buffers_that_are_too_small():
    pool = Pool()
    for size in range(100_000, 3_000_000, 100_000):
        lease = pool.take(size)
        memory = np.asarray(lease)
        assert len(memory) >= size
        memory[:] = 1
        del lease, memory
    pool.take(1)
    assert len(pool._free) + len(pool._returned) == 1


def test_small_and_empty_tensors():
    pool = Reused(Pool())
    assert pool.tensor(0, torch.int64).shape == (0,)
    assert pool.tensor(7, torch.float32).shape == (7,)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
def test_large_tensors_have_the_type_that_was_asked_for(dtype):
    tensor = Reused(Pool()).tensor(100_000, dtype)
    assert (tensor.dtype, tensor.shape) == (dtype, (100_000,))


def test_threads_never_share_a_buffer():
    pool = Reused(Pool())
    wrong = []

    def work(number):
        for turn in range(300):
            tensor = pool.tensor(20_000 + turn, torch.int64)
            tensor.fill_(number)
            other = pool.tensor(30_000, torch.int64)
            other.fill_(-number)
            if not bool((tensor == number).all()) or not bool((other == -number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
