"""Divides the work on a long list between the hosts of a job: each claims free shares, and all receive all results."""

import base64
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fsranks.job_store import JobStore  # needs torch, which commands on one host do without

_SHARES = 64
_LEAST = 256  # files of a share
_PATIENCE_S = 60.0  # wait for a share that another host has claimed; after it this host reads the share itself


class Hosts(NamedTuple):
    """The store over which hosts exchange shares. Every rank creates it, the same number of times.

    timeout_s: of one request to the store.
    """

    store: "JobStore"
    timeout_s: float

    def shared(self, name: str, files: int, read: Callable[[range], bytes]) -> list[bytes]:
        """The results of `read` for all shares of the list, in order. Blocks until all have arrived.

        name: identifies the list: equal names must mean equal lists. No host has to take part: this host also reads a
        share that another one has claimed but does not deliver.

        Raises: errors of `read`; PeerError: the store is lost.
        """
        size = max(_LEAST, -(-files // _SHARES))
        shares = [range(begin, min(begin + size, files)) for begin in range(0, files, size)]
        results: dict[int, bytes] = {}
        me = uuid.uuid4().hex
        for number, share in enumerate(shares):
            claim = f"{name} share {number}"
            if self.store.decide(f"{claim} taken by", me, self.timeout_s) == me:
                results[number] = read(share)
                self.store.post(claim, base64.b64encode(results[number]).decode(), self.timeout_s)
        # Only now wait for others: every free share is claimed, so no work is left to this host.
        for number, share in enumerate(shares):
            if number not in results:
                claim = f"{name} share {number}"
                posted = self.store.wait([claim], _PATIENCE_S)
                results[number] = base64.b64decode(posted[claim]) if claim in posted else read(share)
        return [results[number] for number in range(len(shares))]
