"""fscomm: prioritized, overlapped embedding communication for TorchRec models, exact to the bit."""

from typing import TYPE_CHECKING, Any

from fscomm.errors import AnnouncementError, FreeScaleError, MismatchError, NotServedError, PeerError
from fscomm.meter import BubbleMeter
from fscomm.report import Report

if TYPE_CHECKING:
    from fscomm.comm import Comm, enable

__all__ = [
    "AnnouncementError",
    "BubbleMeter",
    "Comm",
    "FreeScaleError",
    "MismatchError",
    "NotServedError",
    "PeerError",
    "Report",
    "enable",
]


def __getattr__(name: str) -> Any:
    """`enable` needs torchrec, which is imported on first use."""
    if name in ("enable", "Comm"):
        from fscomm import comm

        return getattr(comm, name)
    raise AttributeError(f"module 'fscomm' has no attribute {name!r}")
