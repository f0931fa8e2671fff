"""Hosts of a job share the work on a long list: each takes a share that nobody has taken, and all hear of all."""

import base64
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fsranks.job_store import JobStore  # needs torch, which commands on one host do without

_SHARES = 64
_LEAST = 256  # files of a share
_PATIENCE_S = 60.0  # for a share that another host has taken; then it is read here, too


class Hosts(NamedTuple):
    """Where hosts tell each other. Every rank of the job makes its own, as often as the others.

    timeout_s: of a question to the store.
    """

    store: "JobStore"
    timeout_s: float

    def shared(self, name: str, files: int, read: Callable[[range], bytes]) -> list[bytes]:
        """What `read` gives for all shares of so many files, in order; blocks until it is there.

        `name` says what it is: who gives the same name, has the same list. Nobody has to take part: a share that was
        taken and does not come is read here.

        Raises: what `read` raises; PeerError: the store is lost.
        """
        size = max(_LEAST, -(-files // _SHARES))
        shares = [range(begin, min(begin + size, files)) for begin in range(0, files, size)]
        found: dict[int, bytes] = {}
        me = uuid.uuid4().hex
        for number, share in enumerate(shares):
            claim = f"{name} share {number}"
            if self.store.decide(f"{claim} taken by", me, self.timeout_s) == me:
                found[number] = read(share)
                self.store.post(claim, base64.b64encode(found[number]).decode(), self.timeout_s)
        for number, share in enumerate(shares):
            if number not in found:
                claim = f"{name} share {number}"
                given = self.store.wait([claim], _PATIENCE_S)
                found[number] = base64.b64decode(given[claim]) if claim in given else read(share)
        return [found[number] for number in range(len(shares))]
