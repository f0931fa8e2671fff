"""fscomm: prioritized, overlapped embedding communication for TorchRec models, exact to the bit.

`comm` is the `with` block, `pipeline` the same as a train pipeline. The `loop` over batches announces ids; the `engine`
runs forwards and updates in order; `exchange` sends what `plan` says over `transports`; `tables` are those of this
rank, and all that knows TorchRec. `device` orders work on a GPU; `report` and `meter` say how the time was spent;
`errors` are its errors.
"""

from typing import TYPE_CHECKING, Any

from fscomm.errors import AnnouncementError, FreeScaleError, MismatchError, NotServedError, PeerError
from fscomm.report.report import Report

if TYPE_CHECKING:
    from fscomm.comm import Comm, enable
    from fscomm.managed import cpu_kernels
    from fsmeter import BubbleMeter

__all__ = [
    "AnnouncementError",
    "BubbleMeter",
    "Comm",
    "FreeScaleError",
    "MismatchError",
    "NotServedError",
    "PeerError",
    "Report",
    "cpu_kernels",
    "enable",
]


def __getattr__(name: str) -> Any:
    """`enable` and `cpu_kernels` need torchrec, which is imported on first use. BubbleMeter is a name of fsmeter."""
    if name in ("enable", "Comm"):
        from fscomm import comm

        return getattr(comm, name)
    if name == "cpu_kernels":
        from fscomm.managed import cpu_kernels

        return cpu_kernels
    if name == "BubbleMeter":
        import fsmeter

        return fsmeter.BubbleMeter
    raise AttributeError(f"module 'fscomm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
