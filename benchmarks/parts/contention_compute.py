"""What computes beside transfers: a matrix product and HSTU's attention, as calls that issue to the current stream.

Both in bfloat16. Letters: H heads, N events of one sequence, D channels of a head.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

DTYPE = torch.bfloat16
HIDDEN, INNER = 1024, 4096
HEADS, HEAD_CHANNELS = 8, 128
BLOCK = 2048  # queries whose scores are in memory at a time
PRODUCT, ATTENTION = "matrix product", "HSTU attention"
SIZES = {PRODUCT: (2048, 8192, 32768), ATTENTION: (2048, 4096, 8192)}  # tokens; events of the one sequence


def compute(name: str, size: int, where: torch.device) -> tuple[Callable[[], object], int]:
    """The call, and how many of them take a millisecond or two together on a large GPU."""
    if name == PRODUCT:
        x, w, out = (torch.randn(*shape, device=where, dtype=DTYPE) for shape in _shapes_of_product(size))
        return lambda: torch.matmul(x, w, out=out), max(4, (1 << 17) // size)
    q, k, v = (torch.randn(HEADS, size, HEAD_CHANNELS, device=where, dtype=DTYPE) for _ in range(3))
    return lambda: hstu_attention(q, k, v), max(1, (SIZES[ATTENTION][-1] // size) ** 2)


def hstu_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block: int = BLOCK) -> torch.Tensor:
    """Without softmax: out[t] = sum over s <= t of silu(q[t] . k[s]) v[s] / N. q, k, v, out: [H, N, D].

    In plain torch, so scores go through memory, which a fused kernel would spare. Blocks of queries keep them small,
    and leave out the keys that come after all queries of a block.
    """
    events, out = q.shape[1], torch.empty_like(v)
    for start in range(0, events, block):
        stop = min(start + block, events)
        gate = F.silu(torch.bmm(q[:, start:stop], k[:, :stop].transpose(1, 2)), inplace=True)
        torch.bmm(gate.tril_(start), v[:, :stop], out=out[:, start:stop])
    return out.div_(events)


def _shapes_of_product(tokens: int) -> tuple[tuple[int, int], ...]:
    return (tokens, HIDDEN), (HIDDEN, INNER), (tokens, INNER)
