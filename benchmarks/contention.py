"""How much do transfers slow down the compute that runs beside them (the paper's Figure 10)?

    python benchmarks/contention.py [--rounds 7] [--mib 64]

Two ranks. Matrix products and the attention of a sequence model (HSTU), in bfloat16, are timed alone and beside a
transfer, in turns (alone, way, alone, way, ...), for a copy by a kernel of as many blocks as NCCL takes channels, and
for each transport.
With a GPU for each rank both compute; on one GPU only rank 0 does, as processes that compute get it one at a time.
What arrives is compared before anything is reported. Needs a GPU, and Triton for the kernel.
"""

import itertools
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from common.environment import gpu, need_gpu
from common.ranks import run_ranks
from common.table import argument_parser, emit
from parts.contention_compute import ATTENTION, BLOCK, HEAD_CHANNELS, HEADS, HIDDEN, INNER, PRODUCT, SIZES, compute

from fscomm.device import CudaDevice
from fscomm.transports.opening import open_transport
from fscomm.transports.ring.cuda_driver import CudaError, engine_copy
from fscomm.transports.transport import Chunk, Transport
from fsranks.rank_context import resolve

RANKS = 2
CHANNELS = 16
TRANSFERS = 20  # in one turn
SHARED = ("host-staged",)  # what two ranks of one GPU can use
OWN = ("nccl", "nccl-ce", "copy-engine", *SHARED)
BY_DRIVER = ("nccl-ce", "copy-engine")  # copy with cuda-bindings
KERNEL = "copy by a kernel"
TIMEOUT_S = 60.0
CASES = tuple((name, size) for name, sizes in SIZES.items() for size in sizes)
COLUMNS = [
    *("compute", "tokens", "beside", "alone, ms", "beside it, ms"),
    *("slower, %", "least, %", "most, %", "moved, GB/s"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """ways: in the order of the table. nbytes: what every rank sends at a time."""

    ways: tuple[str, ...]
    rounds: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One round of one way: milliseconds per call alone before it and beside it, and how fast rows moved."""

    compute: str
    size: int
    way: str
    alone_ms: float
    beside_ms: float
    gb_per_s: float

    @property
    def slower(self) -> float:
        """Percent."""
        return 100 * (self.beside_ms / self.alone_ms - 1)


class Timed:
    """Compute in the stream of the calling thread; a call gives milliseconds for one of `number`."""

    def __init__(self, call: Callable[[], object], number: int) -> None:
        self._call, self._number = call, number

    def __call__(self) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(self._number):
            self._call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / self._number


class Transfers:
    """Exchanges of even pieces over one transport, for a thread of its own; all ranks run as many."""

    def __init__(self, transport: Transport, device: CudaDevice, settings: Settings) -> None:
        self._transport, self._device = transport, device
        rows = settings.nbytes // 4 // transport.world_size
        splits = [rows] * transport.world_size
        total = rows * transport.world_size
        self._inp = torch.arange(total, device=device.where, dtype=torch.int32) + total * transport.rank
        here = torch.arange(rows, device=device.where, dtype=torch.int32) + rows * transport.rank
        self._wanted = torch.cat([here + total * source for source in range(transport.world_size)])
        self._out = torch.full_like(self._inp, -1)
        self._chunk = Chunk(self._out, self._inp, splits, splits, 4 * rows)
        torch.cuda.synchronize(device.where)

    def __call__(self) -> None:
        for _ in range(TRANSFERS):
            self._chunk.over(self._transport).wait()
        self._device.wait(self._device.mark(), TIMEOUT_S)

    def check(self) -> None:
        if not torch.equal(self._out, self._wanted):
            raise SystemExit(f"{self._transport.name} brought something else than was sent: nothing to report")


class KernelCopies:
    """As many bytes copied within the device by a kernel of a few blocks."""

    def __init__(self, device: CudaDevice, settings: Settings) -> None:
        from parts.contention_kernel import copy

        self._copy, self._device = copy, device
        self._inp = torch.arange(settings.nbytes // 4, device=device.where, dtype=torch.int32)
        self._out = torch.full_like(self._inp, -1)
        torch.cuda.synchronize(device.where)

    def __call__(self) -> None:
        for _ in range(TRANSFERS):
            self._copy(self._out, self._inp, blocks=CHANNELS)
        self._device.wait(self._device.mark(), TIMEOUT_S)

    def check(self) -> None:
        if not torch.equal(self._out, self._inp):
            raise SystemExit("the kernel copied something else: nothing to report")


def beside(mover: ThreadPoolExecutor, transfers: Callable[[], None], timed: Timed | None) -> tuple[list[float], float]:
    """Milliseconds per call of `timed` while transfers were under way all the time, and the seconds those took."""
    taken: list[float] = []
    started = threading.Event()

    def run() -> float:
        started.set()
        start = time.perf_counter()
        transfers()
        return time.perf_counter() - start

    future = mover.submit(run)
    started.wait()
    while timed is not None and not future.done():
        took = timed()
        if not future.done():
            taken.append(took)
    return taken, future.result()


def work(rank: int, world_size: int, settings: Settings) -> list[Turn]:
    own = torch.cuda.device_count() >= world_size
    where = torch.device("cuda", rank if own else 0)
    device = CudaDevice(where)
    device.enter()
    opened = {
        way: open_transport(way, resolve(), device, timeout_s=TIMEOUT_S) for way in settings.ways if way != KERNEL
    }
    ways: dict[str, Transfers | KernelCopies] = {
        way: KernelCopies(device, settings) if way == KERNEL else Transfers(opened[way], device, settings)
        for way in settings.ways
    }
    computes = own or rank == 0
    turns = []
    # One thread for all transfers: torch has 32 streams to give out, and then the one of the compute again.
    with ThreadPoolExecutor(1, initializer=device.enter) as mover:
        for case in CASES:
            timed = Timed(*compute(*case, where)) if computes else None
            for number in range(settings.rounds + 1):
                for way, transfers in ways.items():
                    dist.barrier()
                    if way != KERNEL or computes:
                        turn = one_turn(case, way, mover, transfers, timed, settings)
                        turns += [turn] if number and turn is not None else []  # the first round warms up
    for transfers in ways.values():
        if computes or isinstance(transfers, Transfers):
            transfers.check()
    for transport in opened.values():
        transport.close("the benchmark is over")
    return turns


def one_turn(
    case: tuple[str, int],
    way: str,
    mover: ThreadPoolExecutor,
    transfers: Transfers | KernelCopies,
    timed: Timed | None,
    settings: Settings,
) -> Turn | None:
    """None of a rank that does not compute."""
    alone = [timed() for _ in range(10)] if timed is not None else []
    taken, seconds = beside(mover, transfers, timed)
    if timed is None:
        return None
    if not taken:
        raise SystemExit(f"{way}: {TRANSFERS} transfers were over before {case[0]} was: raise --mib")
    return Turn(
        compute=case[0],
        size=case[1],
        way=way,
        alone_ms=statistics.median(alone),
        beside_ms=statistics.median(taken),
        gb_per_s=settings.nbytes * TRANSFERS / seconds / 1e9,
    )


def rows_of(turns: list[Turn], ways: tuple[str, ...]) -> list[list[object]]:
    """The lines of the table, one for each compute, size and way."""
    rows: list[list[object]] = []
    for (name, size), way in itertools.product(CASES, ways):
        of_line = [turn for turn in turns if (turn.compute, turn.size, turn.way) == (name, size, way)]
        slower = [turn.slower for turn in of_line]
        figures = [
            statistics.median(turn.alone_ms for turn in of_line),
            statistics.median(turn.beside_ms for turn in of_line),
            statistics.median(slower),
            min(slower),
            max(slower),
            statistics.median(turn.gb_per_s for turn in of_line),
        ]
        rows.append([name, size, way, *figures])
    return rows


def largest(rows: list[list[object]]) -> list[str]:
    """In words, the lines of the largest size of each compute."""
    return [
        f"{name} of {size} tokens beside {way}: {slower:.1f} % slower."
        for name, size, way, _, _, slower, *_ in rows
        if size == SIZES[str(name)][-1]
    ]


def without_driver() -> str:
    """Why nothing can copy by calls of the driver here; empty if it can."""
    try:
        engine_copy(torch.device("cuda", 0))
    except (CudaError, ImportError) as error:
        return str(error)
    return ""


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=64, help="what every rank sends at a time")
    arguments = parser.parse_args()
    need_gpu()
    own = torch.cuda.device_count() >= RANKS
    lacking = without_driver()
    ways = [way for way in (OWN if own else SHARED) if not (lacking and way in BY_DRIVER)]
    settings = Settings(ways=(KERNEL, *ways), rounds=arguments.rounds, nbytes=arguments.mib << 20)
    turns = run_ranks(RANKS, work, settings)[0]
    rows = rows_of(turns, settings.ways)
    emit(
        "contention",
        f"Matrix products and HSTU attention in bfloat16 beside transfers of {arguments.mib} MiB",
        COLUMNS,
        rows,
        notes=[
            f"{torch.cuda.get_device_name(0)}, "
            f"{'a GPU per rank' if own else 'one GPU for both ranks, of which only rank 0 computes'}. "
            f"Medians of {settings.rounds} rounds; least and most: of the rounds.",
            f"{PRODUCT}: [tokens, {HIDDEN}] x [{HIDDEN}, {INNER}]. {ATTENTION}: one causal sequence, {HEADS} heads of "
            f"{HEAD_CHANNELS} channels, in plain torch, {BLOCK} queries at a time; scores go through memory.",
            f"The kernel has {CHANNELS} blocks and copies within the device, so it moves more bytes than a link would.",
            *([f"Not measured, {' and '.join(BY_DRIVER)}: {lacking}."] if own and lacking else []),
            *largest(rows),
            "The paper: about 10 % under NCCL, growing with sequence length.",
        ],
        extra={"hardware": gpu(), "cuda": torch.version.cuda, "turns": [asdict(turn) for turn in turns]},
        results=arguments.results,
        data="random matrices and samples",
    )


if __name__ == "__main__":
    main()
