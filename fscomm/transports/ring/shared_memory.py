"""Memory and open files that the ranks of one host share, and threads that copy there as a GPU's copy engines do."""

import array
import contextlib
import mmap
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from fscomm.transports.ring.slots import in_circle
from fscomm.transports.together import need_one_host, together
from fsranks.control_group import ControlGroup
from fsranks.errors import PeerError
from fsranks.machine.memory_file import reserve

NAME = "fscomm"  # in lists of what a process has mapped
_JOIN_S = 5.0
_NAME_BYTES = 32  # of a socket
_SHORTEST_S, _LONGEST_S = 20e-6, 2e-3  # between two looks at a word


class SharedMemory:
    """A Driver for tensors on the CPU. Making it, and its `memory`, is collective. instead: what other hosts can use.

    Memory is one memfd per rank, which has no name: the others open it through /proc of its owner, so nothing is left
    when a process is killed.

    Raises:
        StepFailed: on all ranks: they are not all processes of one host, or one has too little free memory.
    """

    def __init__(self, group: ControlGroup, *, instead: str = "use gloo") -> None:
        need_one_host(group, instead)
        self.rank = group.rank
        self.world_size = group.world_size
        self._group = group
        self._queues: list[CopyThread] = []

    def memory(self, nbytes: int) -> list[torch.Tensor]:
        file = -1

        def make() -> None:
            nonlocal file
            with self._with_need(nbytes):
                file = os.memfd_create(NAME)
                reserve(file, nbytes)

        def attach() -> list[torch.Tensor]:
            with self._with_need(nbytes):
                return [_attach(Path(f"/proc/{pid}/fd/{fd}"), nbytes) for pid, fd in places]

        try:
            together(self._group, make)
            places = self._group.all_gather(np.array([os.getpid(), file]))
            return together(self._group, attach)
        finally:
            if file >= 0:
                os.close(file)

    def words(self, number: int) -> list[torch.Tensor]:
        return [words.view(torch.int32) for words in self.memory(4 * number)]

    def queue(self, name: str) -> "CopyThread":
        self._queues.append(CopyThread(f"fscomm {name}"))
        return self._queues[-1]

    def is_done(self, mark: tuple["CopyThread", int]) -> bool:
        return self.wait(mark, 0.0)

    def follow(self, mark: tuple["CopyThread", int]) -> bool:
        """Only a wait can order the caller's thread behind another one."""
        return self.is_done(mark)

    def wait(self, mark: tuple["CopyThread", int], timeout_s: float) -> bool:
        thread, number = mark
        return thread.wait_for(number, timeout_s)

    def close(self) -> None:
        queues, self._queues = self._queues, []
        for queue in queues:
            queue.end()
        for queue in queues:
            queue.join()

    @contextlib.contextmanager
    def _with_need(self, nbytes: int) -> Iterator[None]:
        """Adds to errors of the system how much memory is needed."""
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"could not make or open memory that the ranks share: {error.strerror or error}. The "
                f"{self.world_size} ranks need {nbytes * self.world_size / (1 << 20):.1f} MiB more for one ring: "
                "give them more memory, or use gloo",
            ) from error


class CopyThread:
    """A Queue served by one thread: the copy engine.

    When a peer sees a count, the data must be there. On x86 stores become visible in program order (and memcpy ends its
    streaming stores with a fence). On ARM neither stores nor loads are ordered; but between two operations this thread
    releases a lock and acquires it again, once to count and once to fetch the next operation, and no store or load
    passes a release that is followed by an acquire.
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

    def mark(self) -> tuple["CopyThread", int]:
        return self, self._issued

    def wait_for(self, number: int, timeout_s: float) -> bool:
        """Block until `number` operations are done, at most `timeout_s`; whether they are."""
        with self._changed:
            self._changed.wait_for(lambda: self._done >= number or self._error is not None, timeout_s)
            if self._error is not None:
                raise RuntimeError("a copy thread ended with an error") from self._error
            return self._done >= number

    def end(self) -> None:
        """Drop the operations that have not begun. A wait ends at once, a copy when it is complete."""
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

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._todo or self._ended)
                if self._ended:
                    return
                operation = self._todo.popleft()
            try:
                operation()
            except BaseException as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            del operation  # with its tensors, which an idle thread must not keep
            with self._changed:
                self._done += 1
                self._changed.notify_all()

    def _await(self, at: np.ndarray, value: int) -> None:
        """Poll, with sleeps of an eighth of the time waited so far: a wait ends at most an eighth too late.

        It begins without sleeps; after a long wait it polls 500 times a second.
        """
        start = time.monotonic()
        while in_circle(int(at[0]) - value) < 0 and not self._ended:
            waited_s = time.monotonic() - start
            time.sleep(0 if waited_s < _SHORTEST_S else min(waited_s / 8, _LONGEST_S))


def _attach(path: Path, nbytes: int) -> torch.Tensor:
    """uint8[nbytes]; mapped for as long as a tensor refers to it."""
    file = os.open(path, os.O_RDWR)
    try:
        return torch.frombuffer(mmap.mmap(file, nbytes), dtype=torch.uint8)
    finally:
        os.close(file)


def exchange_files(group: ControlGroup, mine: int) -> dict[int, int]:
    """The file descriptors of all other ranks, by rank, to be closed by the caller. Collective; blocks for all ranks.

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
            for ahead in range(1, group.world_size):  # one by one: an inbox has room for few
                to = (group.rank + ahead) % group.world_size
                inbox.settimeout(_left_s(end))
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [mine]))]
                inbox.sendmsg([b"."], rights, 0, b"\0" + names[to])  # Python 3.11's `send_fds` ignores the address
                rank, descriptor = _receive(inbox, names, end)
                found[rank] = descriptor
        except OSError as error:
            for descriptor in found.values():
                os.close(descriptor)
            raise PeerError(
                f"rank {group.rank} could not hand memory to the others: {type(error).__name__}: {error}. "
                f"{group.blame(group.timeout_s)}"
            ) from error
    return found


def _receive(inbox: socket.socket, names: list[bytes], end: float) -> tuple[int, int]:
    """The sender's rank, and the descriptor."""
    while True:
        inbox.settimeout(_left_s(end))
        _, descriptors, _, sender = socket.recv_fds(inbox, 1, 1)
        given = bytes(sender)[1:] if isinstance(sender, bytes) else b""
        if given in names and len(descriptors) == 1:
            return names.index(given), descriptors[0]
        # Every process of the host may write to this socket: what the ranks did not send is closed, and not used.
        for descriptor in descriptors:
            os.close(descriptor)


def _left_s(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time limit is over")
    return left
