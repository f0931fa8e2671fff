"""Lost ranks in exchanges that are not fscomm's own: TorchRec's, where a module runs plainly, and DDP's in backward.

There gloo names no rank when one dies, and when one is stopped it waits for the limit of the user's process group (30
minutes). So a thread closes the connections of that group once such an exchange takes longer than fscomm's own may.
Whoever sees an exchange fail asks fscomm's control group whose fault it is. The exchanges themselves stay as they are.
"""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist

from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError
from fsranks.hang_up import brief, hang_up

_LOOK_S = 0.25


class LostPeers:
    """Over `groups`, as far as gloo carries what lies on `device`; `control` has the same ranks, None where alone.

    One thread, the one that trains, begins and ends what is watched: `within` a block, or by `begin` and `end`.
    """

    def __init__(self, groups: Iterable[dist.ProcessGroup], device: torch.device, control: ControlGroup | None) -> None:
        self._control = control
        found = [group._get_backend(device) for group in set(groups)] if control is not None else []
        self._gloo = [backend for backend in found if isinstance(backend, dist.ProcessGroupGloo)]
        self._since: float | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="fscomm peers", daemon=True)
        if self._gloo:
            self._thread.start()

    def begin(self) -> None:
        """From now on the other ranks are needed, and have their time."""
        self._since = time.monotonic()

    def end(self) -> None:
        self._since = None

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Raises PeerError for an error of gloo's."""
        outside = self._since
        self.begin()
        try:
            yield
        except RuntimeError as error:
            lost = self.explain(error)
            if lost is None:
                raise
            raise lost from error
        finally:
            if outside is None:
                self.end()
            else:
                self.begin()

    def explain(self, error: BaseException) -> PeerError | None:
        """What names the lost rank in place of an error of gloo's; None for any other error. Blocks for a moment."""
        if not self._gloo or self._control is None or not _is_of_gloo(error):
            return None
        waited_s = time.monotonic() - self._since if self._since is not None else 0.0
        self._hang_up()  # who waits for this rank there must also look who is lost
        reason = self._control.blame(waited_s)
        return PeerError(
            f"an exchange of TorchRec, DDP or the training loop failed on rank {self._control.rank}: {reason}. "
            f"gloo said: {brief(error)}"
        )

    def close(self) -> None:
        self._closed.set()
        if self._gloo:
            self._thread.join()

    def _look(self) -> None:
        assert self._control is not None
        while not self._closed.wait(min(_LOOK_S, self._control.wait_s / 10)):
            since = self._since
            if since is not None and time.monotonic() - since > self._control.wait_s:
                self._hang_up()
                return

    def _hang_up(self) -> None:
        for gloo in self._gloo:
            hang_up(gloo, gloo.rank(), gloo.size())


def _is_of_gloo(error: BaseException) -> bool:
    """An error that gloo threw comes as a bare RuntimeError: with the place in gloo's source, or after a hang-up."""
    return type(error) is RuntimeError and any(words in str(error) for words in ("/gloo/", "pair closure"))
