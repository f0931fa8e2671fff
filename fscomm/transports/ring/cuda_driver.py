"""Streams and memory of one GPU for a ring: copies, words written and waited for, and no kernel.

The order that peers rely on: `cuStreamWriteValue32` makes all that its stream did before visible to the whole system
before it writes, and nothing behind a `cuStreamWaitValue32` in a stream begins before the word has come. Copies into
a peer's memory are over NVLink: what was copied there before a word was written is there when the word is.
"""

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from fscomm.transports.choice import BATCH_COPIES
from fscomm.transports.handshake import Handshake, together
from fscomm.transports.ring.cuda_api import Cuda, Region, allocate, as_tensor, attach, detach, register, unregister
from fscomm.transports.ring.fabric import store
from fscomm.transports.ring.shared_memory import SharedMemory, exchange_files

_PAUSES_S = (2e-5, 5e-4)  # between two questions whether a mark is done: the first, and the longest
_END_S = 2.0  # for queues to end, once nothing holds them


class CudaStreams:
    """Queues on one GPU. `current_stream` gives the stream that the calling thread issues to, as a handle."""

    def __init__(
        self, where: torch.device, *, cuda: Cuda | None = None, current_stream: Callable[[], int] | None = None
    ) -> None:
        self.where = where
        self.cuda = cuda or Cuda(where.index if where.index is not None else torch.cuda.current_device())
        self.current_stream = current_stream or (lambda: int(torch.cuda.current_stream(where).cuda_stream))
        self.queues: list[CudaQueue] = []
        self._attributes = self._overlapping()

    def queue(self, name: str) -> "CudaQueue":
        queue = CudaQueue(self, name, self.stream())
        self.queues.append(queue)
        return queue

    def is_done(self, mark: "CudaMark") -> bool:
        return mark.done()

    def wait(self, mark: "CudaMark", timeout_s: float) -> bool:
        if not poll(mark.done, timeout_s):
            return False
        self.cuda("cuStreamWaitEvent", self.current_stream(), mark.event, 0)
        return True

    def stream(self) -> Any:
        """One that does not wait for the default stream."""
        return self.cuda("cuStreamCreate", self.cuda.driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)

    def copy(self, stream: Any, out: torch.Tensor, inp: torch.Tensor) -> None:
        """Bytes, as a copy engine does it where the driver can be asked for one; else as it likes."""
        if len(out) != len(inp):
            raise ValueError(f"{len(inp)} bytes cannot be copied to {len(out)}")
        if not len(inp):
            return
        to, source = out.data_ptr(), inp.data_ptr()
        if self._attributes is None:
            self.cuda("cuMemcpyAsync", to, source, len(inp), stream)
            return
        address = self.cuda.driver.CUdeviceptr
        attributes = [self._attributes], [0], 1  # for all copies from the first on
        self.cuda("cuMemcpyBatchAsync", [address(to)], [address(source)], [len(inp)], 1, *attributes, stream)

    def _overlapping(self) -> Any:
        """Asks for copies that leave the SMs alone: those within one GPU may be made by kernels otherwise."""
        driver = self.cuda.driver
        if self.cuda.version < BATCH_COPIES or not hasattr(driver, "cuMemcpyBatchAsync"):
            return None
        wanted = driver.CUmemcpyAttributes()
        wanted.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        wanted.flags = int(driver.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
        return wanted


class CudaDriver(CudaStreams):
    """A `fabric.Driver` for ranks on one host whose GPUs reach each other's memory; several ranks may share a GPU.

    Nothing here waits for the device but `close`, and that not for ever. Memory that was replaced stays until the end:
    giving it back could wait for the device.

    Raises:
        PeerError: on all ranks, if the driver or the bindings of one cannot do what this needs; so do `memory` and
            `words`.
    """

    def __init__(
        self,
        handshake: Handshake,
        where: torch.device,
        *,
        cuda: Cuda | None = None,
        current_stream: Callable[[], int] | None = None,
    ) -> None:
        if not handshake.one_host:
            raise ValueError("copy-engine needs all ranks on one host: take nccl-ce, or host-staged across hosts")
        make = super().__init__
        together(handshake.group, lambda: make(where, cuda=cuda, current_stream=current_stream))
        self.rank = handshake.rank
        self.world_size = handshake.world_size
        self._group = handshake.group
        self._host = SharedMemory(handshake)
        self._regions: list[Region] = []
        self._words: list[torch.Tensor] = []
        self._closed = False

    def memory(self, nbytes: int) -> list[torch.Tensor]:
        opened: list[int] = []
        try:
            mine = together(self._group, lambda: self._allocate(nbytes, opened))
            descriptors = exchange_files(self._group, opened[0])
        finally:
            for descriptor in opened:
                os.close(descriptor)
        regions = together(self._group, lambda: self._attach(descriptors, mine.nbytes))
        regions[self.rank] = mine
        return [as_tensor(regions[rank], self.where, nbytes) for rank in range(self.world_size)]

    def words(self, number: int) -> list[torch.Tensor]:
        words = self._host.words(number)
        together(self._group, lambda: self._register(words))
        return words

    def close(self) -> None:
        """What a queue still uses after its waits are over stays: taking it away would break the device."""
        if self._closed:
            return
        self._closed = True
        ended = [self._end(queue) for queue in self.queues]
        for queue in self.queues:
            queue.close()
        if all(ended):
            for region in self._regions:
                detach(self.cuda, region)
            for words in self._words:
                unregister(self.cuda, words)
        else:
            _keep_for_ever(self._words)
        self._regions, self._words = [], []
        self.cuda.release()

    def _allocate(self, nbytes: int, opened: list[int]) -> Region:
        region, descriptor = allocate(self.cuda, nbytes)
        self._regions.append(region)
        opened.append(descriptor)
        return region

    def _attach(self, descriptors: dict[int, int], nbytes: int) -> dict[int, Region]:
        found: dict[int, Region] = {}
        try:
            for rank, descriptor in descriptors.items():
                found[rank] = attach(self.cuda, descriptor, nbytes)
                self._regions.append(found[rank])
        finally:
            for descriptor in descriptors.values():
                os.close(descriptor)
        return found

    def _register(self, words: list[torch.Tensor]) -> None:
        for of_rank in words:
            register(self.cuda, of_rank)
            self._words.append(of_rank)

    def _end(self, queue: "CudaQueue") -> bool:
        """Whether the queue runs empty, now that all it may wait for is said to have come.

        This is said again and again: a count that a peer's queue was about to write may replace it.
        """

        def let_go() -> None:
            for word, value in queue.awaited.values():
                store(word, value)

        def has_ended() -> bool:
            let_go()
            return mark.done()

        let_go()  # before the mark, which a queue that is full and waits would not accept
        mark = queue.mark()
        return poll(has_ended, _END_S)


class CudaQueue:
    """A stream of its own."""

    def __init__(self, streams: CudaStreams, name: str, stream: Any) -> None:
        self.name = name
        self.awaited: dict[int, tuple[torch.Tensor, int]] = {}  # by address, a word and the value last waited for
        self._streams = streams
        self._cuda = streams.cuda
        self.stream = stream
        self._behind = CudaMark(streams.cuda)

    def begin(self) -> None:
        current = self._streams.current_stream()
        self._cuda.refuse_capture(current)
        self._cuda("cuEventRecord", self._behind.event, current)
        self._cuda("cuStreamWaitEvent", self.stream, self._behind.event, 0)

    def copy(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        self._streams.copy(self.stream, out, inp)

    def write(self, word: torch.Tensor, value: int) -> None:
        self._cuda("cuStreamWriteValue32", self.stream, word.data_ptr(), value & 0xFFFFFFFF, 0)

    def wait(self, word: torch.Tensor, value: int) -> None:
        geq = self._cuda.driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ.value  # in a circle
        self.awaited[word.data_ptr()] = word, value
        self._cuda("cuStreamWaitValue32", self.stream, word.data_ptr(), value & 0xFFFFFFFF, geq)

    def mark(self) -> "CudaMark":
        mark = CudaMark(self._cuda)
        self._cuda("cuEventRecord", mark.event, self.stream)
        return mark

    def close(self) -> None:
        """The stream ends when it has run empty."""
        self.awaited.clear()
        self._cuda("cuStreamDestroy", self.stream)


class CudaMark:
    """An event."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self.event = cuda("cuEventCreate", cuda.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value)

    def done(self) -> bool:
        return self._cuda.is_done(self.event)

    def __del__(self) -> None:
        if hasattr(self, "event"):
            self._cuda.forget(self.event)


def _keep_for_ever(words: list[torch.Tensor]) -> None:
    """Memory that the device may still use must not go with the last object which refers to it."""
    for of_rank in words:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(of_rank))


def poll(is_done: Callable[[], bool], timeout_s: float) -> bool:
    """Block the calling thread until `is_done()`, at most so long; whether it is."""
    end = time.monotonic() + timeout_s
    pause, longest = _PAUSES_S
    while not is_done():
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, longest)
    return True


def engine_copy(where: torch.device) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Copies bytes on `where` in the current stream, not the default one, without a kernel if the driver can."""
    streams = CudaStreams(where)
    return lambda out, inp: streams.copy(streams.current_stream(), out, inp)
