"""Worlds of gloo ranks for tests: processes are started once, then run many cases.

`shared_world(3).run(case, *args)` calls `case(rank, world_size, *args)` on three ranks and returns what each returned;
`case` is a function of a test module. A rank that raises fails the test with its traceback, one that hangs is shown
with all its threads and ends with its world. Tests that kill or stop ranks make a `World` of their own.

Ranks fork from servers that have imported torch and fsdata, so a world takes a fraction of a second to start. There are
two servers, with hash seeds of their own, as ranks of a job have: sets of texts have another order on the next rank.
"""

import atexit
import ctypes
import faulthandler
import functools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import Any, Self
from unittest import mock

import torch
import torch.distributed as dist
from patience import PATIENCE_S

_PRELOADED = [
    "torch",
    "torch.distributed",
    "torchrec",
    "numba.core.registry",
    "fsdata.loader",
    "fsdata.tensors.rebalancing",
    "fsdata.sources",
    "fscomm.comm",
]
_HASH_SEEDS = (0, 4)  # the names of the sequences that tests share have another order in sets of the one and the other


A_THREAD_WAS_LEFT = 3


class WorldError(AssertionError):
    """What went wrong on which rank."""


def exit_codes(case: Callable[..., None], ranks: int, *args: Any) -> list[int | None]:
    """The exit code of every rank after `case(rank, ranks, *args)`, where Python ends as at the end of a script.

    `A_THREAD_WAS_LEFT` says that a thread of Python was there at the very end: it may come out of C++ when Python is
    gone, which aborts the process. Unlike the ranks of a world, these have no process group.
    """
    context, server = multiprocessing.get_context("forkserver"), _server(_HASH_SEEDS[0])
    processes = [context.Process(target=_to_the_end, args=(case, rank, ranks, args)) for rank in range(ranks)]
    with mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process):
        for process in processes:
            process.start()
    for process in processes:
        process.join(PATIENCE_S)
        process.kill()
    return [process.exitcode for process in processes]


def _to_the_end(case: Callable[..., None], rank: int, ranks: int, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    atexit.register(_look_for_threads)
    try:
        case(rank, ranks, *args)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    ctypes.pythonapi.Py_Exit(0)  # multiprocessing would end this process without ending Python


def _look_for_threads() -> None:
    left = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    if left:
        os.write(2, f"{left} were left\n".encode())
        os._exit(A_THREAD_WAS_LEFT)


class World:
    """`size` processes with an initialized gloo default group. Close it, or use it in `with`."""

    def __init__(self, size: int) -> None:
        self.size = size
        for left in (2, 1, 0):
            try:
                self._start()
                return
            except WorldError:  # now and then the kernel resets one of many new connections
                if not left:
                    raise

    def _start(self) -> None:
        size = self.size
        context = multiprocessing.get_context("forkserver")
        servers = [_server(_HASH_SEEDS[rank % 2]) for rank in range(size)]
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, there), name=f"rank {rank}", daemon=True)
            with mock.patch.object(forkserver, "connect_to_new_process", servers[rank].connect_to_new_process):
                process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        try:
            (port,) = self._collect([0], PATIENCE_S, ()).values()
            for pipe in self._pipes[1:]:
                pipe.send(port)
            self._collect(range(size), PATIENCE_S, ())
        except BaseException:
            self.kill()
            raise

    def run(
        self, case: Callable[..., Any], *args: Any, timeout_s: float = PATIENCE_S, lost: Collection[int] = ()
    ) -> list[Any]:
        """What `case(rank, size, *args)` returned on every rank; None for the ranks in `lost`, which are not awaited.

        Raises WorldError with rank and traceback; the world is then gone.
        """
        if not self._processes:
            raise WorldError("this world is gone: an earlier case failed in it")
        job = pickle.dumps((case, args))
        for pipe in self._pipes:
            pipe.send_bytes(job)
        try:
            answers = self._collect([rank for rank in range(self.size) if rank not in lost], timeout_s, lost)
        except BaseException:
            self.kill()
            raise
        return [answers.get(rank) for rank in range(self.size)]

    def pid(self, rank: int) -> int:
        pid = self._processes[rank].pid
        assert pid is not None
        return pid

    def close(self) -> None:
        """Let the ranks end by themselves, then make sure that they did."""
        for pipe in self._pipes:
            try:
                pipe.send_bytes(pickle.dumps(None))
            except OSError:
                continue  # that rank is gone already
        for process in self._processes:
            process.join(2)
        self.kill()

    def kill(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _collect(self, ranks: Collection[int], timeout_s: float, lost: Collection[int]) -> dict[int, Any]:
        end = time.monotonic() + timeout_s
        waiting = {self._pipes[rank]: rank for rank in ranks}
        answers: dict[int, Any] = {}
        errors: dict[int, str] = {}
        while waiting:
            ready = wait(list(waiting), max(end - time.monotonic(), 0))
            if not ready:
                self._show_threads(waiting.values())
                silent = ", ".join(map(str, sorted(waiting.values())))
                raise WorldError(_text(errors) + f"no answer within {timeout_s:g} s from rank(s) {silent}")
            for pipe in ready:
                rank = waiting.pop(pipe)  # type: ignore[call-overload]
                try:
                    done, value = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    self._processes[rank].join(1)
                    done, value = False, f"the process died, exit code {self._processes[rank].exitcode}"
                if done:
                    answers[rank] = value
                else:
                    errors[rank] = value
                    end = min(end, time.monotonic() + 15)  # its peers may now wait for it in vain
        if errors:
            raise WorldError(_text(errors))
        return answers

    def _show_threads(self, ranks: Collection[int]) -> None:
        for rank in ranks:
            os.kill(self.pid(rank), signal.SIGUSR1)
        time.sleep(0.5)


@functools.cache
def _server(seed: int) -> forkserver.ForkServer:
    """Starts at once; whoever forks from it waits for its imports."""
    server = forkserver.ForkServer()
    server.set_forkserver_preload(_PRELOADED)
    with mock.patch.dict(os.environ, PYTHONHASHSEED=str(seed)):
        server.ensure_running()
    return server


@functools.cache
def shared_world(size: int, purpose: str = "") -> World:
    """The world of `size` ranks that all tests of this process share; a new one if a case broke the last.

    Worlds of another `purpose` are other processes: what was loaded into one is not in the other.
    """
    return _Shared(size)


class _Shared(World):
    """Starts anew after a failed case, so that one failure does not fail the tests after it."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        atexit.register(self.close)

    def run(self, case: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        if not self._processes:
            World.__init__(self, self.size)
        return super().run(case, *args, **options)


def _text(errors: dict[int, str]) -> str:
    return "".join(f"\n--- rank {rank}:\n{text}\n" for rank, text in sorted(errors.items()))


def _serve(rank: int, size: int, pipe: Connection) -> None:
    """One rank: join the group, then run cases until told to end."""
    faulthandler.register(signal.SIGUSR1, file=sys.__stderr__, all_threads=True)
    torch.set_num_threads(1)
    limit = timedelta(seconds=PATIENCE_S)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False, timeout=limit)
        pipe.send((True, store.port))
    else:
        store = dist.TCPStore("127.0.0.1", pipe.recv(), size, is_master=False, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    pipe.send((True, None))
    while True:
        job = pickle.loads(pipe.recv_bytes())
        if job is None:
            break
        case, args = job
        try:
            answer = (True, case(rank, size, *args))
        except BaseException:
            answer = (False, traceback.format_exc())
        pipe.send(answer)
    dist.destroy_process_group()
