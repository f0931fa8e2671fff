"""Hardware whose links are as fast as a training run has shown them to be."""

import dataclasses
from typing import Any

from freescale_tools.calibrate.calibration import Calibration
from freescale_tools.simulate.hardware.parameters import Hardware

ALL_TO_ALLS = "all-to-alls of"
"""Stands in the source of what all-to-alls have shown, before the number of their ranks."""


def calibrated(hardware: Hardware, calibration: Calibration) -> Hardware:
    """`hardware` with the bandwidth and latency of the run's all-to-alls, and what fscomm took itself.

    They are those of the slowest link that the ranks of the run used: NVLink if all of them fit, else PCIe within a
    host, else the network. Other links stay as they are. Hardware of a run that shows no exchange stays as it is.
    """
    if calibration.fscomm_s is not None:
        own = f"{calibration.source}, its run with fscomm"
        hardware = dataclasses.replace(
            hardware, own_cost=1e3 * calibration.fscomm_s, sources={**hardware.sources, "own_cost": own}
        )
    ranks, bandwidth, latency = calibration.ranks, calibration.bytes_per_s, calibration.latency_s
    if bandwidth is None or latency is None or ranks < 2:
        return hardware
    near, host = min(ranks, hardware.gpus_per_nvlink), min(ranks, hardware.gpus_per_host)
    if ranks > host:
        link, left = "network", ranks - host
    elif host > near:
        link, left = "pcie", host - near
    else:
        link, left = "nvlink", near - 1
    given = bandwidth * left / ranks / 1e9  # of the bytes that a rank gives, those that cross this link
    least = max(1e6 * latency - hardware.peer_latency * (ranks - 1), 0.0)
    source = f"{calibration.source}, {ALL_TO_ALLS} {ranks} ranks"
    changes: dict[str, Any] = {link: given / hardware.exchange_efficiency, "exchange_latency": least}
    return dataclasses.replace(
        hardware,
        **changes,
        sources={**hardware.sources, link: source, "exchange_latency": source},
    )
