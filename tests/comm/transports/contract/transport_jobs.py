"""Transports by name, and operations that know what they have to bring.

`OPENERS` names the transports that run without a GPU; a gloo backend carries those of NCCL. Rows are random bytes,
`out` lies between two rows of its own and everything is poisoned before. What arrives is compared byte for byte with
what `torch.distributed` brings over the default group of the test world.
"""

import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from patience import PATIENCE_S

from fscomm.device import Host
from fscomm.transports.nccl import NcclTransport, PaddedTransport
from fscomm.transports.opening import open_transport
from fscomm.transports.transport import Handle, Transport
from fsranks.control_group import ControlGroup
from fsranks.errors import FreeScaleError
from fsranks.job_store import job_store
from fsranks.network import hang_up
from fsranks.rank_context import RankContext, resolve

POISON = 0x7F  # NaN as float16, bfloat16 and float32
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
TRAILING: list[tuple[int, ...]] = [(), (1,), (64,), (3, 5), (0,)]
KINDS = ["random", "skewed", "one sends nothing", "one receives nothing", "nobody sends", "own rows", "others' rows"]

Opener = Callable[[RankContext, float], Transport]  # place, timeout_s


def _by_name(name: str) -> Opener:
    return lambda context, timeout_s: open_transport(name, context, Host(), timeout_s=timeout_s)


class Carrier:
    """Gloo, which can be aborted as NCCL can."""

    def __init__(self, context: RankContext, timeout_s: float) -> None:
        assert context.group is not None
        store = job_store(context.group, "carrier", timeout_s).store
        limit = datetime.timedelta(seconds=timeout_s)
        self._gloo: Any = dist.ProcessGroupGloo(store, context.rank, context.world_size, limit)
        self.alltoall_base = self._gloo.alltoall_base

    def abort(self) -> None:
        hang_up(self._gloo, self._gloo.rank(), self._gloo.size())


def open_nccl(context: RankContext, timeout_s: float) -> Transport:
    group = ControlGroup(context, timeout_s=timeout_s)
    return NcclTransport(Carrier(context, timeout_s), group, torch.device("cpu"))


def open_padded(context: RankContext, timeout_s: float) -> Transport:
    group = ControlGroup(context, timeout_s=timeout_s)
    return PaddedTransport(Carrier(context, timeout_s), group, Host())


NCCL, PADDED = "nccl over gloo", "padded over gloo"
OPENERS: dict[str, Opener] = {
    "gloo": _by_name("gloo"),
    "copy-engine": _by_name("copy-engine"),
    "host-staged": _by_name("host-staged"),
    "host-staged over shared memory": _by_name("host-staged:shared-memory"),
    NCCL: open_nccl,
    PADDED: open_padded,
}

MORE: dict[str, Opener] = {}  # that a test adds in its processes


def open_by(name: str, timeout_s: float = PATIENCE_S) -> Transport:
    return (OPENERS | MORE)[name](resolve(), timeout_s)


@contextlib.contextmanager
def opened(name: str) -> Iterator[Transport]:
    transport = open_by(name)
    try:
        yield transport
    finally:
        transport.close("is done with the test")


def attempt(call: Callable[[], object]) -> str:
    """What it raised, "" if nothing."""
    try:
        call()
    except FreeScaleError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def sizes_of(kind: str, world_size: int, seed: int) -> list[list[int]]:
    """[W senders][W receivers] rows."""
    draw = torch.randint(0, 9, (world_size, world_size), generator=torch.Generator().manual_seed(seed))
    one = seed % world_size
    own = torch.eye(world_size, dtype=torch.int64)
    if kind == "skewed":
        draw[one] += 200
        draw[:, (one + 1) % world_size] += 50
    elif kind == "one sends nothing":
        draw[one] = 0
    elif kind == "one receives nothing":
        draw[:, one] = 0
    elif kind == "nobody sends":
        draw[:] = 0
    elif kind == "own rows":
        draw *= own
    elif kind == "others' rows":
        draw *= 1 - own
    return draw.tolist()


def one_pair(world_size: int, rows: int) -> list[list[int]]:
    """The last rank sends `rows` to the first, nobody anything else."""
    sizes = [[0] * world_size for _ in range(world_size)]
    sizes[-1][0] = rows
    return sizes


def random_rows(number: int, trailing: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """[number, *trailing] of any bytes, NaN among them."""
    like = torch.empty(number, *trailing, dtype=dtype)
    limit = 2 if dtype == torch.bool else 256
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, limit, (like.numel() * like.element_size(),), dtype=torch.uint8, generator=generator)
    return drawn.view(dtype).view(like.shape)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def poisoned(number: int, trailing: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    rows = torch.empty(number, *trailing, dtype=dtype)
    as_bytes(rows).fill_(POISON)
    return rows


class Job:
    """One all-to-all, and what it has to bring; made by all ranks together."""

    def __init__(
        self,
        what: str,
        sizes: list[list[int]],
        trailing: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        rank = dist.get_rank()
        self.what = f"{what}, {dtype}, {list(trailing)}"
        self.in_splits = sizes[rank]
        self.out_splits = [of_sender[rank] for of_sender in sizes]
        self.inp = random_rows(sum(self.in_splits), trailing, dtype, seed=sum(map(sum, sizes)) * 10 + rank)
        self.largest_bytes = max(map(max, sizes)) * torch.Size(trailing).numel() * self.inp.element_size()
        self.expected = torch.zeros(sum(self.out_splits), *trailing, dtype=dtype)
        dist.all_to_all_single(self.expected, self.inp, self.out_splits, self.in_splits)
        self._sent = self.inp.clone()
        self._framed = poisoned(len(self.expected) + 2, trailing, dtype)
        self.out = self._framed[1:-1]

    def begin(self, transport: Transport) -> Handle:
        splits = self.out_splits, tuple(self.in_splits)
        return transport.all_to_all_v(self.out, self.inp, *splits, largest_bytes=self.largest_bytes)

    def run(self, transport: Transport) -> None:
        self.begin(transport).wait()
        self.check()

    def check(self) -> None:
        assert torch.equal(as_bytes(self.out), as_bytes(self.expected)), self.what
        assert torch.equal(as_bytes(self.inp), as_bytes(self._sent)), f"{self.what}: inp was written"
        for row in (self._framed[0], self._framed[-1]):
            assert (as_bytes(row) == POISON).all(), f"{self.what}: written outside of out"


def small() -> Job:
    """For three ranks."""
    return Job("small", [[3, 0, 2], [5, 1, 0], [4, 4, 4]], (3,))


def mixed_jobs(world_size: int, number: int, seed: int = 0) -> list[Job]:
    jobs = []
    for k in range(seed, seed + number):
        trailing, dtype, kind = TRAILING[k % len(TRAILING)], DTYPES[k % len(DTYPES)], KINDS[k % len(KINDS)]
        jobs.append(Job(kind, sizes_of(kind, world_size, k), trailing, dtype))
    return jobs
