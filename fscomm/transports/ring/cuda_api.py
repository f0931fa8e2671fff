"""The CUDA driver's own interface, which torch does not offer, through NVIDIA's bindings: imported here only.

Calls, GPU memory that the processes of one host share, and host memory that a GPU reaches. Not torch's symmetric
memory: there ranks meet by a number that all allocations of a process share, holding the interpreter's lock, so two
rings that grow at once in two threads would wait for each other's peers. Here they meet over the group of their ring.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch

from fscomm.device import CAPTURED

TOO_OLD = (
    "a driver of CUDA {driver} has not all functions that cuda-bindings {bindings} calls, copies in batches among "
    "them: pip install 'cuda-bindings<{bindings}', or install a driver of CUDA {bindings}"
)


class CudaError(RuntimeError):
    """A call of the CUDA driver failed; the message names it and the driver's error."""


class Cuda:
    """Calls of the driver in the primary context of a device, the one torch uses, from any thread.

    Raises:
        CudaError: there is no such device, or the driver is older than what the bindings call.
    """

    def __init__(self, ordinal: int, driver: Any = None) -> None:
        self.driver = driver or _bindings()
        self.ordinal = ordinal
        self._of(self.driver.cuInit(0), "cuInit")
        self.version = self._of(self.driver.cuDriverGetVersion(), "cuDriverGetVersion")  # 12080 is CUDA 12.8
        if self.version // 1000 < self.driver.CUDA_VERSION // 1000:
            raise CudaError(TOO_OLD.format(driver=dotted(self.version), bindings=self.driver.CUDA_VERSION // 1000))
        self._device = self._of(self.driver.cuDeviceGet(ordinal), "cuDeviceGet")
        self._context = self._of(self.driver.cuDevicePrimaryCtxRetain(self._device), "cuDevicePrimaryCtxRetain")

    def __call__(self, name: str, *args: Any) -> Any:
        """What `name` gives besides its status: nothing, one value, or several."""
        return self._of(self._run(name, *args), name)

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
        """Whatever the driver says: at the end of the process it has forgotten events before Python does."""
        self._run("cuEventDestroy", event)

    def release(self) -> None:
        self._of(self.driver.cuDevicePrimaryCtxRelease(self._device), "cuDevicePrimaryCtxRelease")

    def _run(self, name: str, *args: Any) -> Any:
        self.driver.cuCtxPushCurrent(self._context)  # if this fails, the next call fails too, and its error is checked
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


def dotted(version: int) -> str:
    """12080 as 12.8."""
    return f"{version // 1000}.{version % 1000 // 10}"


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
class Region:
    """`nbytes` at `pointer` in this process; the memory itself lives while any process maps it."""

    pointer: int
    nbytes: int


def allocate(cuda: Cuda, nbytes: int) -> tuple[Region, int]:
    """A region of at least `nbytes` here, and a descriptor by which others can map it."""
    driver = cuda.driver
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


def attach(cuda: Cuda, descriptor: int, nbytes: int) -> Region:
    """A peer's region, as large as one's own."""
    kind = cuda.driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handle = cuda("cuMemImportFromShareableHandle", descriptor, kind)
    try:
        return _mapped(cuda, handle, nbytes)
    finally:
        cuda("cuMemRelease", handle)


def detach(cuda: Cuda, region: Region) -> None:
    """Nothing of this process may use it any more."""
    cuda("cuMemUnmap", region.pointer, region.nbytes)
    cuda("cuMemAddressFree", region.pointer, region.nbytes)


def register(cuda: Cuda, words: torch.Tensor) -> None:
    """Let the device wait for and write words of host memory, at the addresses which they have for the host.

    Raises:
        CudaError: this cannot be; the memory is not registered then.
    """
    address, flags = (
        words.data_ptr(),
        cuda.driver.CU_MEMHOSTREGISTER_PORTABLE | cuda.driver.CU_MEMHOSTREGISTER_DEVICEMAP,
    )
    cuda("cuMemHostRegister", address, words.nbytes, flags)
    if int(cuda("cuMemHostGetDevicePointer", address, 0)) != address:
        unregister(cuda, words)
        raise CudaError(
            f"CUDA device {cuda.ordinal} reaches host memory at other addresses than the host (some virtual GPUs do), "
            "where the words of copy-engine would not be found: take host-staged"
        )


def unregister(cuda: Cuda, words: torch.Tensor) -> None:
    """Nothing on the device may use them any more."""
    cuda("cuMemHostUnregister", words.data_ptr())


def as_tensor(region: Region, where: torch.device, nbytes: int) -> torch.Tensor:
    """uint8[nbytes] on `where`, also where the memory is a peer's; valid until the region is detached."""
    storage = torch._C._construct_storage_from_data_pointer(region.pointer, where, nbytes)
    return torch.empty(0, dtype=torch.uint8, device=where).set_(storage)


def _mapped(cuda: Cuda, handle: Any, nbytes: int) -> Region:
    driver = cuda.driver
    pointer = int(cuda("cuMemAddressReserve", nbytes, 0, 0, 0))
    try:
        cuda("cuMemMap", pointer, nbytes, 0, handle, 0)
    except BaseException:
        cuda("cuMemAddressFree", pointer, nbytes)
        raise
    region = Region(pointer=pointer, nbytes=nbytes)
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
