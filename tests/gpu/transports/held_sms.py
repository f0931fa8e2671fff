"""The multiprocessors (SMs) of a GPU, held by a kernel that spins: what needs one cannot begin meanwhile.

A transport that is meant to leave them to compute may fall back to kernels without saying so, and a trace does not
tell. It has to move rows while every rank holds its own. As a control a copy by a kernel is issued then too; if that
one completes, nothing was held, and the answer means nothing.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

import torch

_FILL_S = 5.0  # for a kernel to get hold of all SMs; it takes microseconds on a GPU that no other process uses
_ASK_AGAIN_S = 0.0005


class Multiprocessors:
    """The GPU `where`. After `limit_s` the kernel ends by itself, so nothing hangs if this process does."""

    def __init__(self, where: torch.device, *, limit_s: float = 60.0) -> None:
        self._where = where
        self._limit_ns = int(1e9 * limit_s)
        # Of another pool than streams without a priority, of which torch gives out one twice after 32.
        self._spins, self._words, self._copies = (torch.cuda.Stream(where, priority=-1) for _ in range(3))
        self._inp, self._out = (torch.zeros(1024, device=where) for _ in range(2))

    @contextlib.contextmanager
    def hold_all_sms(self) -> Iterator[None]:
        """Waits for this GPU before and after, so it must not be left to a thread that trains.

        Raises:
            RuntimeError: Triton is missing, or something else kept an SM.
        """
        try:
            import spin
        except ImportError as error:
            raise RuntimeError("holding all SMs needs Triton: pip install triton") from error
        properties = torch.cuda.get_device_properties(self._where)
        count = spin.programs(properties.multi_processor_count, properties.max_threads_per_multi_processor)
        flag, arrived = (torch.ones(1, dtype=torch.int32, device=self._where) for _ in range(2))
        zero, one, seen = (torch.full((1,), n, dtype=torch.int32, pin_memory=True) for n in (0, 1, 0))
        # Compiling, loading and allocating wait for the GPU: all of it must be over before the kernel spins.
        torch.cuda.synchronize(self._where)
        self.sm_copy()
        self._copies.synchronize()
        with torch.cuda.stream(self._spins):
            spin.launch(flag, arrived, count=count, limit=self._limit_ns)
            flag.copy_(zero, non_blocking=True)
            arrived.copy_(zero, non_blocking=True)
            self._spins.synchronize()
            spin.launch(flag, arrived, count=count, limit=self._limit_ns)
        try:
            self._await_all(arrived, seen, count)
            yield
        finally:
            with torch.cuda.stream(self._words):
                flag.copy_(one, non_blocking=True)
            self._spins.synchronize()

    def sm_copy(self) -> Callable[[], bool]:
        event = torch.cuda.Event()
        with torch.cuda.stream(self._copies):
            torch.add(self._inp, 1, out=self._out)  # what copies within a device need not run on SMs; this must
            event.record()
        return event.query

    def _await_all(self, arrived: torch.Tensor, seen: torch.Tensor, count: int) -> None:
        end = time.monotonic() + _FILL_S
        while int(seen) != count:
            if time.monotonic() >= end:
                raise RuntimeError(
                    f"only {int(seen)} of the {count} programs that fill {self._where} got hold of an SM within "
                    f"{_FILL_S:g} s: another process or stream uses it"
                )
            time.sleep(_ASK_AGAIN_S)
            with torch.cuda.stream(self._words):
                seen.copy_(arrived, non_blocking=True)
                self._words.synchronize()
