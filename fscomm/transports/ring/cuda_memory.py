"""GPU memory that the processes of one host share, and host memory that a GPU reaches.

Not torch's symmetric memory: there ranks meet by a number that all allocations of a process share, holding the
interpreter's lock, so two rings that grow at once in two threads would wait for each other's peers. Here they meet
over the group of their ring.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch

from fscomm.transports.ring.cuda_api import Cuda, CudaError


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
