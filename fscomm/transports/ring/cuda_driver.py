"""Streams and memory of one GPU for a ring: they copy, write words and wait for words, without a kernel.

Calls the CUDA driver, as torch does not offer this, through NVIDIA's bindings, which are imported here only. The GPU
memory that processes of one host share is not torch's symmetric memory: its ranks rendezvous by a number that all
allocations of a process share, and hold the interpreter's lock meanwhile, so two rings that grow at once in two threads
would wait for each other's peers. Here they synchronize over the group of their ring.

The order that peers rely on: `cuStreamWriteValue32` makes all earlier work of its stream visible to the whole system
before it writes, and nothing after a `cuStreamWaitValue32` in a stream begins before the word has its value. Copies
into the memory of a peer go over NVLink: what was copied before a word was written has arrived when the word has.
"""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fscomm.device import CAPTURED, poll
from fscomm.transports.ring.shared_memory import SharedMemory, exchange_files
from fscomm.transports.ring.slots import store
from fscomm.transports.together import StepFailed, gpu_id, need_own_gpu, together
from fsranks.control_group import ControlGroup

BATCH_COPIES = 12080  # the first driver that can be asked for copies without SMs
_END_S = 2.0  # for queues to end, after all words that they wait for are written
SHARED = (
    "drivers copy within a GPU by kernels, which wait for multiprocessors (measured on driver 580). Give every rank a "
    "GPU of its own, or take host-staged"
)
TOO_OLD = (
    "a driver of CUDA {driver} has not all functions that cuda-bindings {bindings} calls, copies in batches among "
    "them: pip install 'cuda-bindings<{bindings}', or install a driver of CUDA {bindings}"
)


class CudaError(RuntimeError):
    """A call of the CUDA driver failed; the message names it and the driver's error."""


class DriverCalls:
    """Calls of the driver from any thread, in the primary context of a device, which torch uses, too.

    Raises:
        CudaError: there is no such device, or the driver is older than what the bindings call.
    """

    def __init__(self, ordinal: int) -> None:
        self.driver = _bindings()
        self.ordinal = ordinal
        self._of(self.driver.cuInit(0), "cuInit")
        self.version = self._of(self.driver.cuDriverGetVersion(), "cuDriverGetVersion")  # 12080 is CUDA 12.8
        if self.version // 1000 < self.driver.CUDA_VERSION // 1000:
            driver = f"{self.version // 1000}.{self.version % 1000 // 10}"
            raise CudaError(TOO_OLD.format(driver=driver, bindings=self.driver.CUDA_VERSION // 1000))
        self._device = self._of(self.driver.cuDeviceGet(ordinal), "cuDeviceGet")
        self._context = self._of(self.driver.cuDevicePrimaryCtxRetain(self._device), "cuDevicePrimaryCtxRetain")
        # Without it the driver may copy within one GPU by a kernel, which waits for SMs.
        self._overlapping: Any = None
        if self.version >= BATCH_COPIES and hasattr(self.driver, "cuMemcpyBatchAsync"):
            self._overlapping = self.driver.CUmemcpyAttributes()
            self._overlapping.srcAccessOrder = self.driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
            self._overlapping.flags = int(self.driver.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)

    def __call__(self, name: str, *args: Any) -> Any:
        """The results of `name` without its status: None, one value, or several."""
        return self._of(self._run(name, *args), name)

    def current_stream(self) -> int:
        """The handle of the stream that the calling thread issues to."""
        return int(torch.cuda.current_stream(self.ordinal).cuda_stream)

    def stream(self) -> Any:
        """A new one, which does not wait for the default stream."""
        return self("cuStreamCreate", self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)

    def copy(self, stream: Any, out: torch.Tensor, inp: torch.Tensor) -> None:
        """Bytes (uint8), by a copy engine where the driver can be asked for one; otherwise the driver chooses."""
        if len(out) != len(inp):
            raise ValueError(f"{len(inp)} bytes cannot be copied to {len(out)}")
        if not len(inp):
            return
        to, source = out.data_ptr(), inp.data_ptr()
        if self._overlapping is None:
            self("cuMemcpyAsync", to, source, len(inp), stream)
            return
        address = self.driver.CUdeviceptr
        attributes = [self._overlapping], [0], 1  # for all copies from the first on
        self("cuMemcpyBatchAsync", [address(to)], [address(source)], [len(inp)], 1, *attributes, stream)

    def is_done(self, event: Any) -> bool:
        status, *_ = result = self._run("cuEventQuery", event)
        if status == self.driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self._of(result, "cuEventQuery")
        return True

    def refuse_capture(self, stream: Any) -> None:
        """Raise CudaError while work that is issued to `stream` goes into a graph instead."""
        none = self.driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        if self("cuStreamIsCapturing", stream) != none:
            raise CudaError(CAPTURED)

    def forget(self, event: Any) -> None:
        """Ignores errors: at the end of the process the driver destroys events before Python does."""
        self._run("cuEventDestroy", event)

    def release(self) -> None:
        self._of(self.driver.cuDevicePrimaryCtxRelease(self._device), "cuDevicePrimaryCtxRelease")

    def _run(self, name: str, *args: Any) -> Any:
        # A thread that never used this GPU has no context. If this fails, the next call fails too: that is checked.
        self.driver.cuCtxPushCurrent(self._context)
        try:
            return getattr(self.driver, name)(*args)
        except RuntimeError as error:  # of the bindings, for a function that they did not find
            raise CudaError(f"{name} on CUDA device {self.ordinal}: {error}") from error
        finally:
            self.driver.cuCtxPopCurrent()

    def _of(self, result: Any, name: str) -> Any:
        status, *given = result
        if status != self.driver.CUresult.CUDA_SUCCESS:
            why = f". {CAPTURED}" if "CAPTURE" in status.name else ""
            raise CudaError(f"{name} on CUDA device {self.ordinal}: {status.name}{why}")
        return given[0] if len(given) == 1 else given or None


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise ImportError(
            "waiting for a word in a CUDA stream needs cuda-bindings: pip install cuda-bindings, of the CUDA version "
            "of torch (torch.version.cuda)"
        ) from error
    return driver


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedMemory:
    """`nbytes` at `pointer` in this process; the memory itself lives while any process maps it."""

    pointer: int
    nbytes: int


def allocate(cuda: DriverCalls, nbytes: int) -> tuple[MappedMemory, int]:
    """A region of at least `nbytes` on this GPU, and a file descriptor with which other processes can map it."""
    driver = cuda.driver
    # By virtual memory management, as cuMemAlloc may wait for the device, and the device may wait for the peers that
    # wait for this region.
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = cuda.ordinal
    wanted.requestedHandleTypes = kind
    least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
    grain = cuda("cuMemGetAllocationGranularity", wanted, least)
    nbytes = -(-nbytes // grain) * grain
    handle = cuda("cuMemCreate", nbytes, wanted, 0)
    try:
        descriptor = int(cuda("cuMemExportToShareableHandle", handle, kind, 0))
        try:
            return _mapped(cuda, handle, nbytes), descriptor
        except BaseException:
            os.close(descriptor)
            raise
    finally:
        cuda("cuMemRelease", handle)  # the mapping keeps it


def attach(cuda: DriverCalls, descriptor: int, nbytes: int) -> MappedMemory:
    """Maps a peer's region of `nbytes`."""
    kind = cuda.driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handle = cuda("cuMemImportFromShareableHandle", descriptor, kind)
    try:
        return _mapped(cuda, handle, nbytes)
    finally:
        cuda("cuMemRelease", handle)


def detach(cuda: DriverCalls, region: MappedMemory) -> None:
    """Unmaps a region, which nothing in this process may use any more."""
    cuda("cuMemUnmap", region.pointer, region.nbytes)
    cuda("cuMemAddressFree", region.pointer, region.nbytes)


def register(cuda: DriverCalls, words: torch.Tensor) -> None:
    """Let the device wait for and write words of host memory, at the same addresses as the host.

    Raises:
        CudaError: this is not possible; the memory is not registered.
    """
    address = words.data_ptr()
    flags = cuda.driver.CU_MEMHOSTREGISTER_PORTABLE | cuda.driver.CU_MEMHOSTREGISTER_DEVICEMAP
    cuda("cuMemHostRegister", address, words.nbytes, flags)
    if int(cuda("cuMemHostGetDevicePointer", address, 0)) != address:
        unregister(cuda, words)
        raise CudaError(
            f"CUDA device {cuda.ordinal} reaches host memory at other addresses than the host (some virtual GPUs do), "
            "where the words of copy-engine would not be found: take host-staged"
        )


def unregister(cuda: DriverCalls, words: torch.Tensor) -> None:
    """Ends `register`; nothing on the device may use the words any more."""
    cuda("cuMemHostUnregister", words.data_ptr())


def as_tensor(region: MappedMemory, where: torch.device, nbytes: int) -> torch.Tensor:
    """uint8[nbytes] on `where`, also for the memory of a peer; valid until the region is detached."""
    storage = torch._C._construct_storage_from_data_pointer(region.pointer, where, nbytes)
    return torch.empty(0, dtype=torch.uint8, device=where).set_(storage)


def _mapped(cuda: DriverCalls, handle: Any, nbytes: int) -> MappedMemory:
    driver = cuda.driver
    pointer = int(cuda("cuMemAddressReserve", nbytes, 0, 0, 0))
    try:
        cuda("cuMemMap", pointer, nbytes, 0, handle, 0)
    except BaseException:
        cuda("cuMemAddressFree", pointer, nbytes)
        raise
    region = MappedMemory(pointer=pointer, nbytes=nbytes)
    allowed = driver.CUmemAccessDesc()
    allowed.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    allowed.location.id = cuda.ordinal
    allowed.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    try:
        cuda("cuMemSetAccess", pointer, nbytes, [allowed], 1)
    except BaseException:
        detach(cuda, region)
        raise
    return region


class CudaMark:
    """All that was issued to `stream` so far, as an event."""

    def __init__(self, cuda: DriverCalls, stream: Any) -> None:
        self._cuda = cuda
        # Events that take the time are slower to record, to query and to wait for.
        self.event = cuda("cuEventCreate", cuda.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value)
        cuda("cuEventRecord", self.event, stream)

    def done(self) -> bool:
        return self._cuda.is_done(self.event)

    def __del__(self) -> None:
        if hasattr(self, "event"):  # it has none if the driver refused to make one
            self._cuda.forget(self.event)


class CudaQueue:
    """A `slots.Queue` over `stream`, which nothing else uses."""

    def __init__(self, cuda: DriverCalls, stream: Any) -> None:
        self.awaited: dict[int, tuple[torch.Tensor, int]] = {}  # by address, a word and the value last waited for
        self.stream = stream
        self._cuda = cuda

    def begin(self) -> None:
        current = self._cuda.current_stream()
        # An event of a captured stream would draw this one into the graph, with its waits for other ranks.
        self._cuda.refuse_capture(current)
        mark = CudaMark(self._cuda, current)
        self._cuda("cuStreamWaitEvent", self.stream, mark.event, 0)

    def copy(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        self._cuda.copy(self.stream, out, inp)

    def write(self, word: torch.Tensor, value: int) -> None:
        # The driver takes unsigned words. Flags 0: a barrier of the whole system is before the write, which peers need.
        self._cuda("cuStreamWriteValue32", self.stream, word.data_ptr(), value & 0xFFFFFFFF, 0)

    def wait(self, word: torch.Tensor, value: int) -> None:
        geq = self._cuda.driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ.value  # in a circle
        # Before the call: a full stream blocks in it, and `CudaDriver.close` must know how to end its waits.
        self.awaited[word.data_ptr()] = word, value
        self._cuda("cuStreamWaitValue32", self.stream, word.data_ptr(), value & 0xFFFFFFFF, geq)

    def mark(self) -> CudaMark:
        return CudaMark(self._cuda, self.stream)

    def close(self) -> None:
        """The driver destroys the stream once its work is done."""
        self.awaited.clear()
        self._cuda("cuStreamDestroy", self.stream)


class CudaDriver:
    """A `slots.Driver` for ranks on one host whose GPUs access each other's memory.

    Only `close` waits for the device, for a limited time. Memory that was replaced is freed by `close`: freeing it
    earlier could wait for the device. cuda: by default, calls for the GPU `where`.

    Raises:
        StepFailed: on all ranks, if the driver or the bindings of one lack a function; also by `memory` and `words`.
    """

    def __init__(self, group: ControlGroup, where: torch.device, *, cuda: DriverCalls | None = None) -> None:
        self._host = SharedMemory(group, instead="take nccl-ce, or host-staged")
        self.cuda = together(group, lambda: cuda or DriverCalls(_ordinal(where)))
        self.rank = group.rank
        self.world_size = group.world_size
        self._group = group
        self._where = where
        self._queues: list[CudaQueue] = []
        self._regions: list[MappedMemory] = []
        self._words: list[torch.Tensor] = []
        self._closed = False

    def memory(self, nbytes: int) -> list[torch.Tensor]:
        opened: list[int] = []

        def make() -> MappedMemory:
            region, descriptor = allocate(self.cuda, nbytes)
            self._regions.append(region)
            opened.append(descriptor)
            return region

        def attach_peers() -> dict[int, MappedMemory]:
            found = {self.rank: mine}
            for rank, descriptor in descriptors.items():
                found[rank] = attach(self.cuda, descriptor, mine.nbytes)
                self._regions.append(found[rank])
            return found

        try:
            # Each step on all ranks or on none: a rank without memory would leave its peers waiting for a descriptor.
            mine = together(self._group, make)
            descriptors = exchange_files(self._group, opened[0])
            opened += descriptors.values()
            regions = together(self._group, attach_peers)
        finally:  # a mapping keeps its memory without them
            for descriptor in opened:
                os.close(descriptor)
        return [as_tensor(regions[rank], self._where, nbytes) for rank in range(self.world_size)]

    def words(self, number: int) -> list[torch.Tensor]:
        words = self._host.words(number)

        def register_all() -> None:
            # Those of peers, too: the queues here write into them.
            for of_rank in words:
                register(self.cuda, of_rank)
                self._words.append(of_rank)

        together(self._group, register_all)
        return words

    def queue(self, name: str) -> CudaQueue:
        del name
        self._queues.append(CudaQueue(self.cuda, self.cuda.stream()))
        return self._queues[-1]

    def is_done(self, mark: CudaMark) -> bool:
        return mark.done()

    def follow(self, mark: CudaMark) -> bool:
        self.cuda("cuStreamWaitEvent", self.cuda.current_stream(), mark.event, 0)
        return True

    def wait(self, mark: CudaMark, timeout_s: float) -> bool:
        # cuEventSynchronize has no time limit, and would not end if the peer that the queue waits for is dead.
        return poll(mark.done, timeout_s) and self.follow(mark)

    def close(self) -> None:
        """Memory that a queue still uses after the end of its waits is leaked: freeing it would break the device."""
        if self._closed:
            return
        self._closed = True
        ended = [self._end(queue) for queue in self._queues]
        for queue in self._queues:
            queue.close()
        if all(ended):
            for region in self._regions:
                detach(self.cuda, region)
            for words in self._words:
                unregister(self.cuda, words)
        else:
            # One reference is leaked: the memory of words is unmapped with the last tensor that refers to it.
            for words in self._words:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(words))
        self._regions, self._words = [], []
        self.cuda.release()

    def _end(self, queue: CudaQueue) -> bool:
        """Write all words that the queue may wait for; whether it then runs empty.

        They are written repeatedly: a count that a peer's queue was about to write may replace them.
        """

        def end_waits() -> None:
            for word, value in queue.awaited.values():
                store(word, value)

        def has_ended() -> bool:
            end_waits()
            return mark.done()

        end_waits()  # before the mark, as issuing it would block while the queue is full
        mark = queue.mark()
        return poll(has_ended, _END_S)


def check_gpus(group: ControlGroup, where: torch.device) -> None:
    """Raise StepFailed where a ring would hang, or bring wrong rows, silently. Collective."""
    gpus = need_own_gpu(group, where, SHARED)
    here = together(group, lambda: _nvlinks(where, gpus))
    seen = group.all_gather(np.array(here, np.int8))
    # A pair is known if one of its ranks sees both GPUs, and refused if one of them sees no link.
    worst, best = np.minimum(seen, seen.T), np.maximum(seen, seen.T)
    pairs = [(rank, peer) for peer in range(len(gpus)) for rank in range(peer)]
    if apart := [f"{rank} and {peer}" for rank, peer in pairs if worst[rank, peer] < 0]:
        raise StepFailed(
            f"no NVLink between the GPUs of ranks {_few(apart)}: a word in host memory may overtake copies that go "
            "over PCIe. Take host-staged"
        )
    if unknown := [f"{rank} and {peer}" for rank, peer in pairs if best[rank, peer] == 0]:
        raise StepFailed(
            f"whether NVLink joins the GPUs of ranks {_few(unknown)} cannot be seen: let every process see all GPUs "
            "(CUDA_VISIBLE_DEVICES)"
        )


def _nvlinks(where: torch.device, gpus: list[str]) -> list[int]:
    """By rank, whether NVLink joins its GPU and that of this rank: 1 yes, -1 no, 0 this process cannot see its GPU."""
    from torch._C import _autograd, _distributed_c10d

    detect = _distributed_c10d._detect_dma_connectivity  # type: ignore[attr-defined]
    links = detect(_autograd.DeviceType.CUDA, "nvlink").matrix
    here = _ordinal(where)
    # By identity: each process counts the GPUs that it sees from 0, in an order of its own.
    numbers = {gpu_id(torch.device("cuda", number)): number for number in range(torch.cuda.device_count())}
    return [0 if gpu not in numbers else 1 if links[here][numbers[gpu]] else -1 for gpu in gpus]


def _few(pairs: list[str]) -> str:
    return ", ".join(pairs[:4]) + (", ..." if len(pairs) > 4 else "")


def _ordinal(where: torch.device) -> int:
    return where.index if where.index is not None else torch.cuda.current_device()


def engine_copy(where: torch.device) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A function that copies bytes on `where` in the current stream, without a kernel if the driver can. The current
    stream must not be the default one."""
    cuda = DriverCalls(_ordinal(where))
    return lambda out, inp: cuda.copy(cuda.current_stream(), out, inp)
