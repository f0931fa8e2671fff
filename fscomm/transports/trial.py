"""Rows that all ranks know, exchanged once by a transport before it serves: do they arrive as they were sent?

Rows tell from where, to where and in which place they were sent. All ranks know all splits, and so
what the others send.
"""

import torch

from fscomm.transports.transport import Handle, Transport
from fsranks.errors import name_ranks

LARGE_BYTES = (9 << 20) + 40  # of one piece: several slots of every transport, and a rest
_WIDTH = 3  # bytes of a row: no power of two
_BELOW, _POISON = 251, 255
_STARTS = 7919  # so many bytes are between the beginnings of two pieces


def wrong_rows(transport: Transport, where: torch.device) -> str:
    """In words, whose rows did not come to this rank; empty if all did. Collective; waits for the device.

    Two operations are under way at once: one of few rows, and one of which a piece is larger than slots and buffers.
    """
    exchanges = [_Exchange(number, most, transport, where) for number, most in enumerate((5, LARGE_BYTES // _WIDTH))]
    handles = [exchange.begin() for exchange in exchanges]
    for handle in handles:
        handle.wait()
    return next((wrong for exchange in exchanges if (wrong := exchange.wrong())), "")


class _Exchange:
    """Known rows as the rank of `transport` takes part in it: uneven, of some ranks none, one piece of `most` rows."""

    def __init__(self, number: int, most: int, transport: Transport, where: torch.device) -> None:
        rank, size = transport.rank, transport.world_size
        ranks = torch.arange(size)
        sources, peers = ranks[:, None], ranks[None]
        splits = (7 * sources + 11 * peers) % 60  # rows from each rank to each
        splits[(sources + peers) % 3 == 0] = 0
        for source in range(size):
            splits[source, (source + 1) % size] = most

        def piece(source: int, to: int) -> torch.Tensor:
            start, nbytes = ((number * size + source) * size + to) * _STARTS, int(splits[source, to]) * _WIDTH
            return ((start + torch.arange(nbytes)) % _BELOW).to(torch.uint8).view(-1, _WIDTH).to(where)

        self._transport = transport
        self._largest_bytes = int(splits.max()) * _WIDTH
        self._sent = [piece(source, rank) for source in range(size)]  # to this rank
        self._pieces = [piece(rank, to) for to in range(size)]
        self._inp = torch.cat(self._pieces)
        self._out = torch.full_like(torch.cat(self._sent), _POISON)

    def begin(self) -> Handle:
        splits = [len(piece) for piece in self._sent], [len(piece) for piece in self._pieces]
        return self._transport.all_to_all_v(self._out, self._inp, *splits, largest_bytes=self._largest_bytes)

    def wrong(self) -> str:
        parts = self._out.split([len(piece) for piece in self._sent])
        ranks = [rank for rank, part in enumerate(parts) if not torch.equal(part, self._sent[rank])]
        return f"rows from {name_ranks(ranks)} are not what was sent" if ranks else ""
