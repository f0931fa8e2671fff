"""Causal pointwise attention over jagged sequences, block by block.

HSTU's attention without softmax: out[t] = sum over s <= t of silu(q[t] . k[s]) v[s], separately for every
sequence. It does not pad and keeps no score matrix. A sequence of L events needs time for about L^2 / 2
scores and memory for one block. The backward pass computes the scores again. Letters: T events of all
sequences, H heads, D channels of a head.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

BLOCK = 256  # one block of scores, its gate and its gradient stay in the L2 cache


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """q, k, v [H, T, D], offsets int64 [B + 1] on the CPU -> [H, T, D]."""
    return _BlockedAttention.apply(q, k, v, offsets)


def attention_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The definition with whole score matrices, for tests."""
    outputs = [v[:, :0]]
    for start, end in pairwise(offsets.tolist()):
        scores = q[:, start:end] @ k[:, start:end].transpose(1, 2)
        outputs.append(torch.tril(F.silu(scores)) @ v[:, start:end])
    return torch.cat(outputs, dim=1)


def _blocks(offsets: torch.Tensor) -> Iterator[tuple[slice, slice, bool]]:
    """(queries, keys, whether on the diagonal) of every block that the causal mask keeps."""
    for start, end in pairwise(offsets.tolist()):
        for row in range(start, end, BLOCK):
            queries = slice(row, min(row + BLOCK, end))
            for column in range(start, row, BLOCK):
                yield queries, slice(column, column + BLOCK), False
            yield queries, queries, True


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(v)
        for queries, keys, diagonal in _blocks(offsets):
            gate = F.silu(torch.bmm(q[:, queries], k[:, keys].transpose(1, 2)), inplace=True)
            if diagonal:
                gate.tril_()
            out[:, queries].baddbmm_(gate, v[:, keys])
        ctx.save_for_backward(q, k, v, offsets)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        q, k, v, offsets = ctx.saved_tensors
        grad = grad.contiguous()
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for queries, keys, diagonal in _blocks(offsets):
            scores = torch.bmm(q[:, queries], k[:, keys].transpose(1, 2))
            dscores = torch.ops.aten.silu_backward(torch.bmm(grad[:, queries], v[:, keys].transpose(1, 2)), scores)
            gate = F.silu(scores, inplace=True)
            if diagonal:
                gate.tril_()
                dscores.tril_()
            dq[:, queries].baddbmm_(dscores, k[:, keys])
            dk[:, keys].baddbmm_(dscores.transpose(1, 2), q[:, queries])
            dv[:, keys].baddbmm_(gate.transpose(1, 2), grad[:, queries])
        return dq, dk, dv, None
