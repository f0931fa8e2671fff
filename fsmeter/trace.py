"""What the threads of a rank do, as a timeline for ui.perfetto.dev or chrome://tracing.

torch.profiler records the thread that trains: operators, what fscomm does there, and kernels of a GPU. What fscomm's
workers do is noted here and added to the file. torch.profiler could record all threads (`profile_all_threads`), but
workers are always in the middle of something: in torch 2.13 a range that is open when such a profile begins fails an
assertion when it ends, and one that ends in the next such profile writes into memory of the first, which is freed.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fsranks.observers import observed_by
from fsranks.rank_context import resolve


@contextmanager
def trace(path: str | Path) -> Iterator[None]:
    """Write what this rank does inside the block as JSON in the Trace Event Format: a few steps of training, say.

    A track per thread: the thread that is here, and fscomm's workers. Work of a worker that begins before the block
    or ends after it is left out. After an error in the block nothing is written. Lists `traceEvents` of several ranks
    may be joined: their times are of the same clock, and processes are named by rank.
    """
    workers = _Workers()
    with torch.profiler.profile() as profile, observed_by(workers):
        yield
    with TemporaryDirectory() as folder:
        written = Path(folder, "trace.json")
        profile.export_chrome_trace(str(written))
        document = json.loads(written.read_text())
    names = {
        ("process_name", 0): f"rank {resolve().rank}",
        ("thread_name", threading.get_native_id()): threading.current_thread().name,
    }
    for event in document["traceEvents"]:
        name = names.get((event.get("name"), event.get("tid")))
        if name is not None and event["pid"] == os.getpid():
            event["args"]["name"] = name
    document["traceEvents"] += workers.events(document.get("baseTimeNanoseconds", 0))
    Path(path).write_text(json.dumps(document))


class _Workers:
    """Notes what threads do that torch does not profile. Instants are nanoseconds since the epoch."""

    def __init__(self) -> None:
        self._done: list[tuple[int, str, int, int, int | None]] = []
        self._threads: dict[int, str] = {}

    def doing(self, what: str, *, step: int | None, waiting: bool) -> AbstractContextManager[object]:
        if torch.autograd._profiler_enabled():  # on this thread
            return nullcontext()
        return self._noted(f"fscomm: {'wait for ' if waiting else ''}{what}", step)

    def sent(self, what: str, size: int) -> None:
        pass

    @contextmanager
    def _noted(self, name: str, step: int | None) -> Iterator[None]:
        thread = threading.get_native_id()
        self._threads[thread] = threading.current_thread().name
        begin = time.time_ns()
        try:
            yield
        finally:
            self._done.append((thread, name, begin, time.time_ns(), step))

    def events(self, base_ns: int) -> list[dict[str, Any]]:
        """Names of threads, then slices, in microseconds since `base_ns`. Workers may still be at work."""
        process = os.getpid()
        names = [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}
            for thread, name in self._threads.copy().items()
        ]
        slices = [
            {
                "ph": "X", "cat": "fscomm", "name": name, "pid": process, "tid": thread,
                "ts": (begin - base_ns) / 1e3, "dur": (end - begin) / 1e3,
                "args": {} if step is None else {"step": step},
            }
            for thread, name, begin, end, step in tuple(self._done)
        ]  # fmt: skip
        return [*names, *slices]
