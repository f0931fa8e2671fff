"""Lost ranks in exchanges that are not fscomm's own: TorchRec's, where a module runs plainly, and DDP's in backward.

If a rank dies in such an exchange, gloo does not name it. If a rank is stopped, gloo waits for the time limit of the
user's process group (30 minutes). So a thread closes the connections of that group when an exchange takes longer than
fscomm's own may. A rank whose exchange failed asks fscomm's control group which rank was lost. The exchanges themselves
are not changed.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist

from fsranks.control_group import Alone, AnyGroup
from fsranks.errors import PeerError
from fsranks.network import brief, hang_up

_LOOK_S = 0.25


class LostPeers:
    """Watches those of `groups` in which gloo moves tensors of `device`. control: a group of the same ranks.

    The training thread begins and ends what is watched: `within` a block, or by `begin` and `end`.
    """

    def __init__(self, groups: Iterable[dist.ProcessGroup], device: torch.device, control: AnyGroup) -> None:
        self._control = None if isinstance(control, Alone) else control
        # A backend is shared by modules of one group; NCCL has a watchdog of its own for its exchanges.
        found = [group._get_backend(device) for group in dict.fromkeys(groups)] if self._control is not None else []
        self._gloo = [backend for backend in found if isinstance(backend, dist.ProcessGroupGloo)]
        self._since: float | None = None
        self._until: float | None = None  # when what is watched was over, if it failed
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="fscomm peers", daemon=True)
        if self._gloo:
            self._thread.start()

    @property
    def waits(self) -> bool:
        """Whether an exchange is watched just now."""
        return self._since is not None and self._until is None

    def begin(self) -> None:
        """This rank waits for the others from now on, for at most the time limit of fscomm's own exchanges."""
        self._since, self._until = self._now(), None

    def end(self) -> None:
        self._since = None

    def pause(self) -> None:
        """The watched exchange has failed, maybe because of a lost peer: `explain` may be called."""
        self._until = self._now()

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Raises PeerError in place of an error of gloo."""
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
            # Inside another watched block: that one has its full time limit again, as it has made progress.
            if outside is None:
                self.end()
            else:
                self.begin()

    def explain(self, error: BaseException) -> PeerError | None:
        """An error that names the lost rank, in place of an error of gloo; None for any other error. Blocks shortly."""
        if not self._gloo or self._control is None or not is_of_gloo(error):
            return None
        waited_s = 0.0 if self._since is None else (self._until or self._now()) - self._since
        self._hang_up()  # this wakes ranks that wait for this one, so that they also check which rank was lost
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
        limit_s = self._control.timeout_s
        # A tenth of short limits, as tests have them: the look may add as much to the time until a lost rank is named.
        while not self._control.clock.wait(min(_LOOK_S, limit_s / 10), self._closed):
            since = self._since
            if since is not None and self.waits and self._now() - since > limit_s:
                self._hang_up()
                return

    def _now(self) -> float:
        return 0.0 if self._control is None else self._control.clock.now()

    def _hang_up(self) -> None:
        for gloo in self._gloo:
            hang_up(gloo, gloo.rank(), gloo.size())


def is_of_gloo(error: BaseException) -> bool:
    """Errors of gloo are bare RuntimeErrors. They name a file of gloo, or they say that a connection was closed."""
    return type(error) is RuntimeError and any(words in str(error) for words in ("/gloo/", "pair closure"))
