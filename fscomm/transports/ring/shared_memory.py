"""Memory that the ranks of one host share, and threads that copy there as a GPU's copy engines do."""

import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fscomm.transports.handshake import Handshake
from fscomm.transports.ring.streams import in_circle
from fsranks.errors import name_ranks

NAME = "fscomm"  # in lists of what a process has mapped
_JOIN_S = 5.0
_SHORTEST_S, _LONGEST_S = 20e-6, 2e-3  # between two looks at a word


class SharedMemory:
    """A Driver for tensors on the CPU. Making it, and its `memory`, is collective.

    Memory is one file per rank that lies in memory (memfd) and has no name: the others open it through its owner's
    /proc, so that nothing is left behind when a process is killed. Every rank raises if one cannot.

    Raises:
        ValueError: the ranks are not all processes of this host.
        OSError: there is no memory left.
    """

    def __init__(self, handshake: Handshake) -> None:
        if not handshake.one_host:
            raise ValueError(
                "shared memory needs all ranks to be processes of one host, and in one process namespace, but "
                f"rank {handshake.rank} of {handshake.world_size} does not see all others: use gloo"
            )
        self.rank = handshake.rank
        self.world_size = handshake.world_size
        self._group = handshake.group
        self._queues: list[CopyThread] = []

    def memory(self, nbytes: int) -> list[torch.Tensor]:
        file = -1

        def make() -> None:
            nonlocal file
            file = os.memfd_create(NAME)
            _reserve(file, nbytes)

        try:
            self._on_all(make, nbytes)
            places = self._group.all_gather(np.array([os.getpid(), file]))
            return self._on_all(lambda: [_attach(Path(f"/proc/{pid}/fd/{fd}"), nbytes) for pid, fd in places], nbytes)
        finally:
            if file >= 0:
                os.close(file)

    def words(self, number: int) -> list[torch.Tensor]:
        return [words.view(torch.int32) for words in self.memory(4 * number)]

    def queue(self, name: str) -> "CopyThread":
        self._queues.append(CopyThread(f"fscomm {name}"))
        return self._queues[-1]

    def is_done(self, mark: "Mark") -> bool:
        return mark.thread.has_done(mark.number)

    def wait(self, mark: "Mark", timeout_s: float) -> bool:
        return mark.thread.wait_for(mark.number, timeout_s)

    def close(self) -> None:
        queues, self._queues = self._queues, []
        for queue in queues:
            queue.end()
        for queue in queues:
            queue.join()

    def _on_all(self, call: Callable[[], Any], nbytes: int) -> Any:
        """What `call` returns here, once it worked everywhere; OSError on all ranks if it did not."""
        failure, result = None, None
        try:
            result = call()
        except OSError as error:
            failure = error
        codes = self._group.all_gather(np.array([0 if failure is None else failure.errno or 1]))[:, 0]
        if failed := np.flatnonzero(codes).tolist():
            code = int(codes[failed[0]])
            raise OSError(
                code,
                f"{name_ranks(failed)} could not make or open memory that the ranks share: {os.strerror(code)}. The "
                f"{self.world_size} ranks need {nbytes * self.world_size / (1 << 20):.1f} MiB more for one ring: "
                "give them more memory, or use gloo",
            ) from failure
        return result


@dataclass(frozen=True, slots=True)
class Mark:
    thread: "CopyThread"
    number: int


class CopyThread:
    """A Queue served by one thread: the copy engine.

    A count that a peer sees must mean that the data is there. On x86 stores become visible in the order they were made
    (and memcpy ends its streaming stores with a fence). On ARM they need not, nor need loads be in order; but between
    two operations this thread gives a lock back and takes it again, once to count and once to fetch the next, and there
    no store or load passes an unlock that is followed by a lock.
    """

    def __init__(self, name: str) -> None:
        self._todo: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._issued = self._done = 0
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """What a thread did on the CPU is done."""

    def copy(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        target, source = out.numpy(), inp.numpy()
        self._issue(lambda: np.copyto(target, source))  # one memcpy, without the GIL

    def write(self, word: torch.Tensor, value: int) -> None:
        at = word.numpy()
        self._issue(lambda: at.__setitem__(0, value))  # one aligned store

    def wait(self, word: torch.Tensor, value: int) -> None:
        at = word.numpy()
        self._issue(lambda: self._await(at, value))

    def mark(self) -> Mark:
        return Mark(self, self._issued)

    def has_done(self, number: int) -> bool:
        with self._changed:
            self._raise_error()
            return self._done >= number

    def wait_for(self, number: int, timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._done >= number or self._error is not None, timeout_s)
            self._raise_error()
            return self._done >= number

    def end(self) -> None:
        """Give up what is still to do; a wait ends at once, a copy when it is over."""
        with self._changed:
            self._ended = True
            self._todo.clear()
            self._changed.notify_all()

    def join(self) -> None:
        self._thread.join(_JOIN_S)

    def _issue(self, operation: Callable[[], None]) -> None:
        with self._changed:
            self._todo.append(operation)
            self._issued += 1
            self._changed.notify_all()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise RuntimeError("a copy thread ended with an error") from self._error

    def _serve(self) -> None:
        while (operation := self._next()) is not None:
            try:
                operation()
            except BaseException as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            del operation  # and with it its tensors, which this thread must not hold while it has nothing to do
            with self._changed:
                self._done += 1
                self._changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._todo or self._ended)
            return None if self._ended else self._todo.popleft()

    def _await(self, at: np.ndarray, value: int) -> None:
        """Check, and sleep for an eighth of the time waited so far: so a wait ends at most an eighth too late.

        At first it checks all the time; after a long wait it checks 500 times a second.
        """
        start = time.monotonic()
        while in_circle(int(at[0]) - value) < 0 and not self._ended:
            waited_s = time.monotonic() - start
            time.sleep(0 if waited_s < _SHORTEST_S else min(waited_s / 8, _LONGEST_S))


def _reserve(file: int, nbytes: int) -> None:
    """Zeros that are there: memory that is only promised would end a process at its first use."""
    os.posix_fallocate(file, 0, nbytes)


def _attach(path: Path, nbytes: int) -> torch.Tensor:
    """uint8[nbytes]; mapped for as long as a tensor refers to it."""
    file = os.open(path, os.O_RDWR)
    try:
        return torch.frombuffer(mmap.mmap(file, nbytes), dtype=torch.uint8)
    finally:
        os.close(file)
