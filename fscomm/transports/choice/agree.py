"""On which transport all ranks agree, and the proof in a warm-up that it works here."""

import dataclasses
import logging
from functools import partial

import torch

from fscomm.device import device_of
from fscomm.transports.choice.capabilities import Capabilities, read
from fscomm.transports.choice.rules import Choice, choose
from fscomm.transports.choice.selftest import check
from fscomm.transports.opening import open_transport, split_name
from fsranks.meeting import gather
from fsranks.rank_context import RankContext

log = logging.getLogger("fscomm")


def agree_on(asked: str, context: RankContext, where: torch.device, *, timeout_s: float) -> Choice:
    """What all ranks use for tables that lie `where`, the same everywhere; logs one line. Collective.

    Whatever is not gloo, which the others are compared with, must first move rows rightly and, between GPUs, without a
    kernel; otherwise nothing is chosen, for this reason.

    Raises:
        PeerError: a rank did not come, or was lost during the warm-up.
    """
    tell = partial(gather, context, what="the choice of a transport", timeout_s=timeout_s)
    name = asked if asked == "auto" else split_name(asked)[0]
    choice = choose([Capabilities.from_json(text) for text in tell(read(where).to_json())], name)
    if choice.name is not None and choice.name != "gloo":
        device = device_of(where)
        exactly = asked if name == choice.name else choice.name
        transport = open_transport(exactly, context, device, timeout_s=timeout_s)
        try:
            problem = check(transport, device, gather=tell)
        finally:
            transport.close("the warm-up is over")
        if problem is not None:
            failed = {choice.name: f"its warm-up failed: {problem}"}
            choice = dataclasses.replace(choice, name=None, why_not={**choice.why_not, **failed})
    log.info("fscomm: %s", choice.line())
    return choice
