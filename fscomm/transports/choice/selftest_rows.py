"""What the warm-up sends: rows that tell from where, to where and in which place they were sent.

W: ranks. All ranks draw the same splits, so each knows what the others send.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fscomm.transports.transport import Handle, Transport
from fsranks.errors import name_ranks

LARGE_BYTES = (9 << 20) + 40  # of one piece: several slots of every transport, and a rest
_BELOW = {torch.int64: 1 << 62, torch.float32: 1 << 24, torch.uint8: 251}  # what a dtype holds exactly, and no poison
_POISON = {torch.int64: -1, torch.float32: float("nan"), torch.uint8: 255}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An exchange as one rank takes part in it; `sent`: to it by each rank, so all together what `out` must become."""

    name: str
    out: torch.Tensor
    inp: torch.Tensor
    sent: tuple[torch.Tensor, ...]
    in_splits: tuple[int, ...] | None  # None: an all-gather

    def poison(self) -> None:
        self.out.fill_(_POISON[self.out.dtype])

    def issue(self, transport: Transport) -> Handle:
        if self.in_splits is None:
            return transport.all_gather(self.out, self.inp)
        return transport.all_to_all_v(self.out, self.inp, [len(part) for part in self.sent], self.in_splits)

    def problem(self) -> str:
        """In words, whose rows are not here as they were sent; empty if all are. Waits for the device."""
        parts = self.out.split([len(part) for part in self.sent])
        wrong = [rank for rank, part in enumerate(parts) if not torch.equal(part, self.sent[rank])]
        return f"{self.name}: rows from {name_ranks(wrong)} are not what was sent" if wrong else ""


def operations(rank: int, world_size: int, where: torch.device) -> list[Operation]:
    """What `rank` takes part in, on tensors that lie `where`; the last one moves the most bytes."""
    random = torch.Generator().manual_seed(world_size)

    def drawn(most: int) -> torch.Tensor:
        splits = torch.randint(0, most + 1, (world_size, world_size), generator=random)
        return splits * torch.randint(0, 3, splits.shape, generator=random).clamp(max=1)  # a third sends nothing

    to_one = torch.zeros(world_size, world_size, dtype=torch.int64)
    to_one[:, -1] = 37
    large = drawn(50)
    for source in range(world_size):
        large[source, (source + 1) % world_size] = LARGE_BYTES // 20
    exchanges = [
        ("few rows", torch.int64, (), drawn(5)),
        ("rows of odd size", torch.uint8, (3,), drawn(100)),
        ("no rows", torch.float32, (4,), drawn(0)),
        ("all to the last rank", torch.float32, (4,), to_one),
        ("many rows", torch.float32, (16,), drawn(1000)),
    ]
    made = [_all_to_all(number, *exchange, rank, where) for number, exchange in enumerate(exchanges)]
    made += [_all_gather(10 + n, n, rank, world_size, where) for n in (0, 3, 1001)]
    return [*made, _all_to_all(20, "large pieces", torch.float32, (5,), large, rank, where)]


def _all_to_all(
    number: int,
    name: str,
    dtype: torch.dtype,
    trailing: Sequence[int],
    splits: torch.Tensor,
    rank: int,
    where: torch.device,
) -> Operation:
    """splits: int64 [W, W], rows from each rank to each."""

    def piece(source: int, to: int) -> torch.Tensor:
        return _rows(number, source, to, int(splits[source, to]), dtype, trailing).to(where)

    sent = tuple(piece(source, rank) for source in range(len(splits)))
    inp = torch.cat([piece(rank, to) for to in range(len(splits))])
    return Operation(
        name=f"all-to-all of {name}",
        out=torch.empty_like(torch.cat(sent)),
        inp=inp,
        sent=sent,
        in_splits=tuple(splits[rank].tolist()),
    )


def _all_gather(number: int, n: int, rank: int, world_size: int, where: torch.device) -> Operation:
    sent = tuple(_rows(number, source, 0, n, torch.float32, (3,)).to(where) for source in range(world_size))
    return Operation(
        name=f"all-gather of {n} rows",
        out=torch.empty_like(torch.cat(sent)),
        inp=sent[rank].clone(),
        sent=sent,
        in_splits=None,
    )


def _rows(number: int, source: int, to: int, n: int, dtype: torch.dtype, trailing: Sequence[int]) -> torch.Tensor:
    """[n, *trailing], counted on from a start of its own for every operation and pair of ranks."""
    width = int(torch.Size(trailing).numel())
    start = ((number * 1009 + source) * 1013 + to) * 7919
    return ((start + torch.arange(n * width)) % _BELOW[dtype]).to(dtype).reshape(n, *trailing)
