"""Where in the user's program a module was called: what a reason is said with."""

import sys
from pathlib import Path
from types import FrameType

_OURS = "fscomm"
_NOT_THE_USERS = (_OURS, "torch", "torchrec", "fbgemm_gpu")


def user_line() -> str | None:
    """Such as "model.py:71": the user's line that called the forward for which fscomm stands in. None elsewhere."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (frame.f_code.co_name == "__call__" and _package(frame) == _OURS):
        frame = frame.f_back
    while frame is not None and _package(frame) in _NOT_THE_USERS:
        frame = frame.f_back
    return None if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
