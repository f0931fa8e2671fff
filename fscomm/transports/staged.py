"""Rows through host memory: to the host by the copy engine, over a host transport, and back (paper, section 3).

No kernel takes part, so compute that runs beside it keeps all multiprocessors. The calling thread, a lane, waits for
its stream where rows leave the device; where they come back it only issues the copies.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from fscomm.device import Device
from fscomm.transports.gloo import Channel
from fsranks.group import Part


class StagedChannel:
    """A host channel for tensors on `device`."""

    def __init__(self, channel: Channel, device: Device) -> None:
        self._channel = channel
        self._device = device

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        return self._channel.all_gather(mine)

    def all_to_all_v(self, parts: Iterable[Part]) -> None:
        arriving: list[tuple[torch.Tensor, torch.Tensor]] = []

        def on_the_host() -> Iterator[Part]:
            for out, mine, received, sent in parts:
                leaving, coming = self._device.staging(mine), self._device.staging(out)
                leaving.copy_(mine)
                arriving.append((out, coming))
                yield coming, leaving, received, sent

        self._channel.all_to_all_v(on_the_host())
        for out, coming in arriving:
            out.copy_(coming, non_blocking=True)

    def abort(self, reason: str) -> None:
        self._channel.abort(reason)

    def close(self, reason: str) -> None:
        self._channel.close(reason)
