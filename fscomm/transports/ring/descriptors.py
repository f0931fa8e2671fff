"""Open files handed from process to process on one host."""

import array
import os
import secrets
import socket
import time

import numpy as np

from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError

_NAME_BYTES = 32


def exchange(group: ControlGroup, mine: int) -> dict[int, int]:
    """The descriptors of all other ranks, by rank, to be closed by the caller. Collective; blocks for all ranks.

    Raises:
        PeerError: a rank is dead, has left, or is later than the time limit.
    """
    name = secrets.token_bytes(_NAME_BYTES // 2).hex().encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(b"\0" + name)  # abstract: it leaves no file
        word = np.frombuffer(name, np.uint8).copy()
        names = [row.tobytes() for row in group.all_gather(word)]
        end = time.monotonic() + group.timeout_s
        found: dict[int, int] = {}
        try:
            for ahead in range(1, group.world_size):  # one by one: few wait in anybody's inbox
                to = (group.rank + ahead) % group.world_size
                inbox.settimeout(_left(group, end))
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [mine]))]
                inbox.sendmsg([b"."], rights, 0, b"\0" + names[to])
                rank, descriptor = _receive(group, inbox, names, end)
                found[rank] = descriptor
        except (OSError, PeerError) as error:
            for descriptor in found.values():
                os.close(descriptor)
            if isinstance(error, PeerError):
                raise
            raise PeerError(
                f"rank {group.rank} could not hand memory to the others: {type(error).__name__}: {error}. "
                f"{group.blame(group.timeout_s)}"
            ) from error
    return found


def _receive(group: ControlGroup, inbox: socket.socket, names: list[bytes], end: float) -> tuple[int, int]:
    """From whom it came, and the descriptor; what strangers send is not looked at."""
    while True:
        inbox.settimeout(_left(group, end))
        _, rights, _, sender = inbox.recvmsg(1, socket.CMSG_SPACE(4))
        descriptors = [d for *_, data in rights for d in array.array("i", data[: len(data) - len(data) % 4])]
        given = bytes(sender)[1:] if isinstance(sender, bytes) else b""
        if given in names and len(descriptors) == 1:
            return names.index(given), descriptors[0]
        for descriptor in descriptors:
            os.close(descriptor)


def _left(group: ControlGroup, end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise PeerError(group.blame(group.timeout_s))
    return left
