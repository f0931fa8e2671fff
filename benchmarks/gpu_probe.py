"""What the CUDA driver does where the transport `copy-engine` depends on it. Needs a GPU and cuda-bindings.

    python benchmarks/gpu_probe.py [stalls] [copies] [growth]

stalls: one stream of a ring waits for a word. Which other streams stand still, though nothing orders them behind it?
Run it with CUDA_DEVICE_MAX_CONNECTIONS=8 and 32: streams that share a hardware queue hold up each other.
copies: a kernel holds every multiprocessor (SM). Is a copy within the GPU done all the same, if the driver is asked for
copies that overlap with compute, and if it is not asked?
growth: a stream waits for a word. Which calls of the host come back meanwhile: those that give a second ring words and
larger slots, and those of torch that allocate, free, and load kernels?

Every answer is a check in `<name>.json`, written as soon as it is there.
"""

import contextlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from common.checks import Checks
from common.environment import need_gpu
from common.table import RESULTS, argument_parser

from fscomm.device import poll
from fscomm.transports.ring.cuda_driver import (
    BATCH_COPIES,
    CudaMark,
    CudaQueue,
    DriverCalls,
    MappedMemory,
    allocate,
    attach,
    detach,
    register,
    unregister,
)
from fscomm.transports.ring.slots import store

sys.path.append(str(Path(__file__).parents[1] / "tests" / "gpu" / "transports"))

from held_sms import Multiprocessors

RING_STREAMS = 6  # of two rings, each with one to send, one to receive and one for words
WAIT_S = 0.5  # work of microseconds that is not done then stands still
END_S = 20.0
SIZES = {"4 KiB": 4 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}

Action = Callable[[], object]


class Blocked:
    """`stream` waits for a word in the memory of the host, so nothing that the GPU does can keep it from ending."""

    def __init__(self, cuda: DriverCalls, stream: Any, word: torch.Tensor) -> None:
        self._queue = CudaQueue(cuda, stream)
        self._word = word  # int32[1], page-locked or registered

    @contextlib.contextmanager
    def until_left(self) -> Iterator[None]:
        wanted = int(self._word) + 1
        try:
            self._queue.wait(self._word, wanted)
            yield
        finally:
            store(self._word, wanted)


def standing(cuda: DriverCalls, queues: Mapping[str, Any], issue: Callable[[str], None]) -> list[str]:
    """The queues whose new work is not done within `WAIT_S`."""
    marks = {}
    for name, stream in queues.items():
        issue(name)
        marks[name] = CudaMark(cuda, stream)
    poll(lambda: all(mark.done() for mark in marks.values()), WAIT_S)
    return [name for name, mark in marks.items() if not mark.done()]


def stalls(
    checks: Checks,
    cuda: DriverCalls,
    queues: Mapping[str, Any],
    works: Mapping[str, Callable[[str], None]],
    word: torch.Tensor,
) -> None:
    """Block each stream of a ring in turn. works: name -> issues such work to the queue of that name."""
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "not set")
    rings = [name for name in queues if name.startswith("ring")]
    for what, issue in works.items():
        with checks.of(f"{what}, {len(queues)} streams, CUDA_DEVICE_MAX_CONNECTIONS={connections}") as told:
            if slow := standing(cuda, queues, issue):
                raise RuntimeError(f"nothing waits, and yet these stand still: {', '.join(slow)}")
            found = {}
            for name in rings:
                others = {other: stream for other, stream in queues.items() if other != name}
                with Blocked(cuda, queues[name], word).until_left():
                    found[name] = standing(cuda, others, issue)
                if not poll(CudaMark(cuda, queues[name]).done, END_S):
                    raise RuntimeError(f"{name} did not go on when its word had come")
            bad = {name: held for name, held in found.items() if held}
            told.append(f"{len(bad)} of {len(rings)} streams held up others while they waited")
            told += [f"{name} held up {', '.join(held)}" for name, held in bad.items()]


def probe_stalls(checks: Checks) -> None:
    where = torch.device("cuda", 0)
    cuda = DriverCalls(0)
    rings = {f"ring {number}": cuda.stream() for number in range(RING_STREAMS)}
    of_torch = {
        f"torch {number}": torch.cuda.Stream(where, priority=priority)
        for number, priority in enumerate([0] * 12 + [-1] * 4)
    }
    of_torch["torch's default"] = torch.cuda.default_stream(where)
    queues = rings | {name: stream.cuda_stream for name, stream in of_torch.items()}
    entered = of_torch | {name: torch.cuda.ExternalStream(int(stream), where) for name, stream in rings.items()}
    host = torch.zeros(4096, dtype=torch.uint8, pin_memory=True)
    device = {name: torch.zeros(4096, dtype=torch.uint8, device=where) for name in queues}
    torch.cuda.synchronize()

    def copy(name: str) -> None:
        cuda("cuMemcpyAsync", device[name].data_ptr(), host.data_ptr(), len(host), queues[name])

    def kernel(name: str) -> None:
        with torch.cuda.stream(entered[name]):
            device[name].add_(1)

    for name in queues:  # what the driver loads and makes at first use is there
        copy(name)
        kernel(name)
    torch.cuda.synchronize()
    word = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    stalls(checks, cuda, queues, {"copies from the host": copy, "kernels": kernel}, word)


def probe_copies(checks: Checks) -> None:
    where = torch.device("cuda", 0)
    cuda, busy = DriverCalls(0), Multiprocessors(where, limit_s=60)
    copies = {f"{size} from the host": _from_host(cuda, nbytes, where) for size, nbytes in SIZES.items()}
    for size, nbytes in SIZES.items():
        copies[f"{size} within the GPU, overlap asked for"] = _within(cuda, nbytes, where, asked=True)
        copies[f"{size} within the GPU, not asked"] = _within(cuda, nbytes, where, asked=False)
    copies["4 KiB from the host, again"] = _from_host(cuda, 4 << 10, where)
    for copy in copies.values():
        copy()
    torch.cuda.synchronize()
    with checks.of("copies while every SM is held") as told, busy.hold_all_sms():
        able = "can" if cuda.version >= BATCH_COPIES else "CANNOT"
        told.append(f"a driver of CUDA {cuda.version / 1000:g} {able} be asked")
        for name, copy in copies.items():
            told.append(f"{name}: {_took(copy())}")
        if poll(busy.sm_copy(), WAIT_S):
            raise RuntimeError("a kernel was done, too: the SMs were not held, and the answers mean nothing")


def _from_host(cuda: DriverCalls, nbytes: int, where: torch.device) -> Callable[[], CudaMark]:
    inp = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)
    return _copy(cuda, torch.empty(nbytes, dtype=torch.uint8, device=where), inp, asked=False)


def _within(cuda: DriverCalls, nbytes: int, where: torch.device, *, asked: bool) -> Callable[[], CudaMark]:
    out, inp = (torch.zeros(nbytes, dtype=torch.uint8, device=where) for _ in range(2))
    return _copy(cuda, out, inp, asked=asked)


def _copy(cuda: DriverCalls, out: torch.Tensor, inp: torch.Tensor, *, asked: bool) -> Callable[[], CudaMark]:
    """In a stream of its own: one that stands still holds up no other."""
    stream = cuda.stream()

    def issue() -> CudaMark:
        if asked:
            cuda.copy(stream, out, inp)
        else:
            cuda("cuMemcpyAsync", out.data_ptr(), inp.data_ptr(), len(inp), stream)
        return CudaMark(cuda, stream)

    return issue


def _took(mark: CudaMark) -> str:
    start = time.perf_counter()
    if not poll(mark.done, 4 * WAIT_S):
        return "not done, it needs SMs"
    return f"done in {1e3 * (time.perf_counter() - start):.2f} ms"


def growth(checks: Checks, blocked: Blocked, actions: Mapping[str, Action]) -> None:
    """Every action in a thread of its own, while a stream waits."""
    for name, action in actions.items():
        with checks.of(name) as told:
            done: dict[str, float | BaseException] = {}
            thread = threading.Thread(target=_timed, args=(action, done), daemon=True)
            with blocked.until_left():
                thread.start()
                thread.join(4 * WAIT_S)
                came_back = not thread.is_alive()
            thread.join(END_S)
            if thread.is_alive():
                raise RuntimeError(f"it did not come back within {END_S:g} s after the stream had gone on")
            if isinstance(done["took"], BaseException):
                raise done["took"]
            told.append(f"{1e3 * done['took']:.2f} ms" if came_back else "comes back only when the stream goes on")


def _timed(action: Action, done: dict[str, float | BaseException]) -> None:
    start = time.perf_counter()
    try:
        action()
        done["took"] = time.perf_counter() - start
    except BaseException as error:
        done["took"] = error


class SecondRing:
    """What `CudaDriver` does when a ring is opened, grows and is closed, without other ranks.

    It maps its own memory twice.
    """

    def __init__(self, cuda: DriverCalls) -> None:
        self._cuda = cuda
        self._regions: list[MappedMemory] = []
        self._words: list[torch.Tensor] = []

    def words(self) -> None:
        words = torch.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), dtype=torch.int32)
        register(self._cuda, words)
        self._words.append(words)

    def grow(self) -> None:
        region, descriptor = allocate(self._cuda, 64 << 20)
        self._regions.append(region)
        try:
            self._regions.append(attach(self._cuda, descriptor, region.nbytes))
        finally:
            os.close(descriptor)

    def close(self) -> None:
        while self._regions:
            detach(self._cuda, self._regions.pop())
        while self._words:
            unregister(self._cuda, self._words.pop())


def probe_growth(checks: Checks) -> None:
    where = torch.device("cuda", 0)
    cuda = DriverCalls(0)
    ring = SecondRing(cuda)
    ring.words()
    ring.grow()  # what the driver loads at first use is loaded
    torch.zeros(64 << 20, dtype=torch.uint8, device=where)  # freed at once, so that there is something to give back
    torch.cuda.synchronize()
    one, kept = torch.ones(1, device=where), []
    actions: dict[str, Action] = {
        "a second ring gets words": ring.words,
        "a second ring grows": ring.grow,
        "a second ring gives all of it back": ring.close,
        "a stream is made": cuda.stream,
        "torch.cuda.empty_cache()": torch.cuda.empty_cache,
        "torch allocates": lambda: kept.append(torch.empty(256 << 20, dtype=torch.uint8, device=where)),
        "torch allocates page-locked memory": lambda: kept.append(
            torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
        ),
        "a kernel is launched for the first time": lambda: torch.erfinv(one),
        "torch.cuda.synchronize(), which must wait": torch.cuda.synchronize,
    }
    word = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    growth(checks, Blocked(cuda, cuda.stream(), word), actions)


PROBES = {"stalls": probe_stalls, "copies": probe_copies, "growth": probe_growth}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("probes", nargs="*", metavar="PROBE", help=", ".join(PROBES))
    parser.set_defaults(results=RESULTS / "gpu")
    arguments = parser.parse_args()
    if unknown := set(arguments.probes) - set(PROBES):
        parser.error(f"there is no probe {', '.join(sorted(unknown))}: the probes are {', '.join(PROBES)}")
    need_gpu()
    problems = 0
    for name in arguments.probes or PROBES:
        checks = Checks(arguments.results, name)
        with checks.of(f"{name}, all of it"):
            PROBES[name](checks)
        problems += checks.problems()
    sys.exit(int(problems > 0))


if __name__ == "__main__":
    main()
