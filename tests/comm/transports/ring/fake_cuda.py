"""What `cuda.bindings.driver` offers and the copy engine uses, on host memory that processes share.

Streams run what was issued to them in order, as soon as it can run: whenever something is issued, and whenever the
state of an event is asked for. `log` has all of it in the order in which it ran.
"""

import ctypes
import enum
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_NONE, _FIXED = 0, 0x10
GRAIN = 1 << 16


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_READY = 600


OK = (CUresult.CUDA_SUCCESS,)


class Stream:
    """As a number, its place among the streams."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.todo: deque[tuple[str, Callable[[], bool], Callable[[], object]]] = deque()
        self.issued = self.done = 0

    def __int__(self) -> int:
        return self.number


class Event:
    stream: Stream
    number = 0


class FakeCuda:
    """One process, or one thread of it. Every function says whether it had a context."""

    CUresult = CUresult
    CUdeviceptr = int
    CUmemAllocationHandleType = SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR=1)
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED=1)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)
    CUmemcpySrcAccessOrder = SimpleNamespace(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM=1)
    CUmemcpyFlags = SimpleNamespace(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=SimpleNamespace(value=1))
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=SimpleNamespace(value=2))
    CUstreamWaitValue_flags = SimpleNamespace(CU_STREAM_WAIT_VALUE_GEQ=SimpleNamespace(value=0))

    def __init__(self, *, version: int = 13000, lacks_memory: bool = False) -> None:
        self.version = version
        self.lacks_memory = lacks_memory
        self.caller = Stream(0)  # that of the thread which uses the ring
        self.streams: list[Stream] = [self.caller]
        self.log: list[tuple[int, str]] = []  # stream, operation
        self.mapped: dict[int, int] = {}
        self._contexts = threading.local()
        self._lock = threading.RLock()
        self._kept: list[Any] = []

    def CUmemAllocationProp(self) -> Any:
        return SimpleNamespace(location=SimpleNamespace())

    CUmemAccessDesc = CUmemAllocationProp

    def CUmemcpyAttributes(self) -> Any:
        return SimpleNamespace()

    def cuInit(self, flags: int) -> Any:
        return OK

    def cuDeviceGet(self, ordinal: int) -> Any:
        return (*OK, ordinal)

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        return (*OK, "context")

    def cuDevicePrimaryCtxRelease(self, device: int) -> Any:
        return OK

    def cuDriverGetVersion(self) -> Any:
        return (*OK, self.version)

    def cuCtxPushCurrent(self, context: str) -> Any:
        self._contexts.depth = getattr(self._contexts, "depth", 0) + 1
        return OK

    def cuCtxPopCurrent(self) -> Any:
        self._contexts.depth -= 1
        return (*OK, "context")

    # Memory

    def cuMemGetAllocationGranularity(self, wanted: Any, option: int) -> Any:
        return self._in_context(GRAIN)

    def cuMemCreate(self, nbytes: int, wanted: Any, flags: int) -> Any:
        assert nbytes % GRAIN == 0
        if self.lacks_memory:
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
        handle = os.memfd_create("gpu")
        os.truncate(handle, nbytes)
        os.pwrite(handle, b"\xcc" * nbytes, 0)  # nobody may rely on zeros
        return self._in_context(handle)

    def cuMemRelease(self, handle: int) -> Any:
        os.close(handle)
        return self._in_context()

    def cuMemExportToShareableHandle(self, handle: int, kind: int, flags: int) -> Any:
        return self._in_context(os.dup(handle))

    def cuMemImportFromShareableHandle(self, descriptor: int, kind: int) -> Any:
        return self._in_context(os.dup(descriptor))

    def cuMemAddressReserve(self, nbytes: int, alignment: int, near: int, flags: int) -> Any:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        return self._in_context(_libc.mmap(None, nbytes, _NONE, flags, -1, 0))

    def cuMemMap(self, pointer: int, nbytes: int, offset: int, handle: int, flags: int) -> Any:
        both = mmap.PROT_READ | mmap.PROT_WRITE
        assert _libc.mmap(pointer, nbytes, both, mmap.MAP_SHARED | _FIXED, handle, 0) == pointer
        self.mapped[pointer] = nbytes
        return self._in_context()

    def cuMemSetAccess(self, pointer: int, nbytes: int, allowed: list[Any], count: int) -> Any:
        assert (self.mapped[pointer], len(allowed), allowed[0].flags) == (nbytes, count, 3)
        return self._in_context()

    def cuMemUnmap(self, pointer: int, nbytes: int) -> Any:
        assert self.mapped.pop(pointer) == nbytes
        return self._in_context()

    def cuMemAddressFree(self, pointer: int, nbytes: int) -> Any:
        assert _libc.munmap(pointer, nbytes) == 0
        return self._in_context()

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> Any:
        self._kept.append(ctypes.create_string_buffer(nbytes))
        return self._in_context(ctypes.addressof(self._kept[-1]))

    def cuMemFreeHost(self, pointer: int) -> Any:
        return self._in_context()

    # Streams

    def cuStreamCreate(self, flags: int) -> Any:
        assert flags == 1, "a stream that waits for the default stream"
        self.streams.append(Stream(len(self.streams)))
        return self._in_context(self.streams[-1])

    def cuStreamDestroy(self, stream: Stream) -> Any:
        return self._in_context()

    def cuStreamSynchronize(self, stream: Stream) -> Any:
        self.run()
        assert not stream.todo, "the host would hang"
        return self._in_context()

    def cuMemsetD8Async(self, pointer: int, value: int, nbytes: int, stream: Stream) -> Any:
        return self._issue(stream, "memset", lambda: ctypes.memset(pointer, value, nbytes))

    def cuMemcpyDtoHAsync(self, to: int, source: int, nbytes: int, stream: Stream) -> Any:
        return self._issue(stream, "read", lambda: ctypes.memmove(to, source, nbytes))

    def cuMemcpyAsync(self, to: int, source: int, nbytes: int, stream: Stream) -> Any:
        return self._issue(stream, "copy", lambda: ctypes.memmove(to, source, nbytes))

    def cuMemcpyBatchAsync(
        self,
        to: list[int],
        source: list[int],
        nbytes: list[int],
        count: int,
        attributes: list[Any],
        first: list[int],
        kinds: int,
        stream: Stream,
    ) -> Any:
        assert (len(to), len(source), len(nbytes), count, first, kinds) == (1, 1, 1, 1, [0], 1)
        assert (attributes[0].srcAccessOrder, attributes[0].flags) == (1, 1)
        assert stream is not self.caller
        return self._issue(stream, "batch copy", lambda: ctypes.memmove(to[0], source[0], nbytes[0]))

    def cuStreamWriteValue32(self, stream: Stream, address: int, value: int, flags: int) -> Any:
        assert flags == 0, "a write that is not ordered behind copies"
        assert 0 <= value < 1 << 32

        def write() -> None:
            ctypes.c_uint32.from_address(address).value = value

        return self._issue(stream, "write", write)

    def cuStreamWaitValue32(self, stream: Stream, address: int, value: int, flags: int) -> Any:
        assert flags == 0
        assert 0 <= value < 1 << 32

        def has_come() -> bool:
            return ctypes.c_int32(ctypes.c_uint32.from_address(address).value - value).value >= 0

        return self._issue(stream, "wait", lambda: None, has_come)

    def cuEventCreate(self, flags: int) -> Any:
        assert flags == 2
        return self._in_context(Event())

    def cuEventDestroy(self, event: Event) -> Any:
        return self._in_context()

    def cuEventRecord(self, event: Event, stream: Stream) -> Any:
        event.stream, event.number = stream, stream.issued
        return self._in_context()

    def cuEventQuery(self, event: Event) -> Any:
        self.run()
        return self._in_context() if event.stream.done >= event.number else (CUresult.CUDA_ERROR_NOT_READY,)

    def cuStreamWaitEvent(self, stream: Stream, event: Event, flags: int) -> Any:
        behind, number = event.stream, event.number
        return self._issue(stream, "behind", lambda: None, lambda: behind.done >= number)

    def run(self) -> None:
        """Until no stream can go on."""
        with self._lock:
            while any(self._step(number, stream) for number, stream in enumerate(self.streams)):
                pass

    def issue(
        self, stream: Stream, what: str, run: Callable[[], object], ready: Callable[[], bool] = lambda: True
    ) -> Event:
        """What a library issues; done when the event is."""
        with self._lock:
            event = Event()
            self._issue(stream, what, run, ready)
            event.stream, event.number = stream, stream.issued
        return event

    def hold(self, stream: Stream, until: Callable[[], bool]) -> None:
        """Something before which `stream` does not go on."""
        with self._lock:
            self._issue(stream, "held", lambda: None, until)

    def _step(self, number: int, stream: Stream) -> bool:
        if not stream.todo or not stream.todo[0][1]():
            return False
        what, _, run = stream.todo.popleft()
        run()
        stream.done += 1
        self.log.append((number, what))
        return True

    def _issue(
        self, stream: Stream, what: str, run: Callable[[], object], ready: Callable[[], bool] = lambda: True
    ) -> Any:
        with self._lock:
            stream.todo.append((what, ready, run))
            stream.issued += 1
            self.run()
        return self._in_context()

    def _in_context(self, *given: object) -> Any:
        if not getattr(self._contexts, "depth", 0):
            return (CUresult.CUDA_ERROR_INVALID_CONTEXT, *(None for _ in given))
        return (*OK, *given)
