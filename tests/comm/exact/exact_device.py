"""Comparisons by `exact.compare` on a device that is played: the host runs ahead of it, and streams order its work."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cached_kernel import CachedKernel, overlapping
from clocks import Clocks, on_streams
from exact import Loop, compare
from exact_model import Config

from fscomm import comm
from fscomm.loop import moving
from fscomm.loop.kjt_paths import walk
from fscomm.tables.torchrec.binding import TorchRecBinding


@contextlib.contextmanager
def on_a_device(problems: list[str]) -> Iterator[Clocks]:
    """Batches are moved to the device, if only to where they are: ids are those of the batch before that. problems:
    gets uses of features before they are there."""
    device = Clocks(done_share=0.5, runs_ahead=True)
    to_device, prepare, moving_to = moving.to_device, TorchRecBinding.prepare, moving.Moving

    def noted(batch: Any, where: torch.device) -> Any:
        moved = to_device(batch, where)
        device.moved |= {id(each): (each, device.now()) for each in (moved, *(kjt for _, kjt in walk(moved)))}
        return moved

    def prepared(self: TorchRecBinding, features: Any, on_host: Any) -> Any:
        kjt, moment = device.moved.get(id(features), (None, None))
        if kjt is features and not moment.is_before(device.now()):
            problems.append("features were used before they were on the device")
        return prepare(self, features, on_host)

    with pytest.MonkeyPatch.context() as patch:
        for user in (comm, moving):
            patch.setattr(user, "device_of", lambda where: device)
        patch.setattr(comm, "Moving", lambda where: moving_to(where or torch.device("cpu")))
        patch.setattr(moving, "to_device", noted)
        patch.setattr(TorchRecBinding, "prepare", prepared)
        patch.setattr(CachedKernel, "device", device)
        yield device
        problems += overlapping()


def compare_played(
    rank: int, size: int, config: Config, loop: Loop, options: dict[str, Any], *, ahead: bool, streams: bool
) -> tuple[list[str], dict[str, Any]]:
    """ahead: `on_a_device`, for which the training thread does not wait. streams: one worker issues to streams of a
    device, whatever the transport."""
    problems: list[str] = []
    with contextlib.ExitStack() as played:
        if streams:
            played.enter_context(on_streams())
        device = played.enter_context(on_a_device(problems)) if ahead else None
        found, said = compare(rank, size, config, loop, "fscomm", options)
    several_numbers = isinstance(options.get("parts"), list)  # of parts: then the end of each step is awaited and timed
    if device is not None and not several_numbers and threading.current_thread().name in device.stalls:
        problems.append("the training thread waited for the device")
    return found + problems, said
