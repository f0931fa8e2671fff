"""What the machine and the process of a rank offer to transports.

Ranks exchange these records as text and decide from all of them, so that all decide alike.
"""

import dataclasses
import importlib.metadata
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import torch

from fsranks.machine.local_processes import machine

T = TypeVar("T")

NVLINK, PEER, NONE = "nvlink", "peer", "none"
ENVIRONMENT = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "NCCL_CTA_POLICY",
    "NCCL_CUMEM_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_WIN_ENABLE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """One rank. What could not be found out is None.

    Attributes:
        device: where the tables are: cpu or cuda.
        host: the same text on all ranks that are processes of one machine.
        index, uuid, gpu: the CUDA device, by the process's own numbers, by its own, and by name.
        torch: version.
        nccl: version of the library that is loaded, most significant number first.
        cuda_bindings: version of the Python package.
        driver: the newest CUDA that the driver serves: 12080 is 12.8.
        reach: by uuid of the other devices that this process sees, how this one gets at their memory: nvlink, peer
            (over PCIe), none. A process that sees only its own device knows nothing.
        environment: those of `ENVIRONMENT` that are set.
        pinned: whether host memory can be page-locked.
    """

    device: str
    host: str
    torch: str
    index: int | None = None
    uuid: str | None = None
    gpu: str | None = None
    nccl: tuple[int, ...] | None = None
    cuda_bindings: str | None = None
    driver: int | None = None
    reach: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    pinned: bool = False

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"tables must be on cpu or cuda, got {self.device!r}")
        if wrong := {how for how in self.reach.values() if how not in (NVLINK, PEER, NONE)}:
            raise ValueError(f"a device is reached by {NVLINK}, {PEER} or {NONE}, got {sorted(wrong)}")
        if self.nccl is not None and not all(isinstance(number, int) for number in self.nccl):
            raise ValueError(f"the version of NCCL must be integers, got {self.nccl!r}")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        given = json.loads(text)
        return cls(**{**given, "nccl": tuple(given["nccl"]) if given["nccl"] else None})


def read(device: torch.device) -> Capabilities:
    """What this process offers for tables on `device`. Never fails: what cannot be asked here is not offered.

    On a GPU this makes a CUDA context, which is there already if tables are.
    """
    found: dict[str, Any] = {
        "device": device.type,
        "host": machine(),
        "torch": torch.__version__,
        "cuda_bindings": _or_none(lambda: importlib.metadata.version("cuda-bindings")),
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    }
    return Capabilities(**found, **(_of_gpu(device) if device.type == "cuda" else {}))


def _of_gpu(device: torch.device) -> dict[str, Any]:
    index = device.index if device.index is not None else _or_none(torch.cuda.current_device)
    if index is None:
        return {}
    return {
        "index": index,
        "uuid": _or_none(lambda: _uuid(index)),
        "gpu": _or_none(lambda: torch.cuda.get_device_name(index)),
        "nccl": _or_none(_nccl),
        "driver": _or_none(_driver),
        "reach": _or_none(lambda: _reach(index)) or {},
        "pinned": bool(_or_none(lambda: torch.empty(1, pin_memory=True).is_pinned())),
    }


def _or_none(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except Exception:  # of any kind: drivers, libraries and builds of torch differ in how they say that they have not
        return None


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)


def _nccl() -> tuple[int, ...]:
    return tuple(number for number in torch.cuda.nccl.version() if isinstance(number, int))


def _driver() -> int:
    return int(torch._C._cuda_getDriverVersion())  # type: ignore[attr-defined]


def _reach(index: int) -> dict[str, str]:
    links = _or_none(_nvlinks)
    reach = {}
    for other in range(torch.cuda.device_count()):
        if other == index:
            continue
        if not torch.cuda.can_device_access_peer(index, other):
            reach[_uuid(other)] = NONE
        else:
            reach[_uuid(other)] = NVLINK if links is not None and links[index][other] else PEER
    return reach


def _nvlinks() -> list[list[int]]:
    """How many links join the devices that this process sees, by their numbers."""
    from torch._C import _autograd, _distributed_c10d

    detect = _distributed_c10d._detect_dma_connectivity  # type: ignore[attr-defined]
    return detect(_autograd.DeviceType.CUDA, "nvlink").matrix
