"""A kernel that occupies every multiprocessor (SM) until it is told to end. Imported on use: it needs Triton."""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

_WARPS = 16
_REGISTERS = 32  # per thread: an SM has 65,536 for its 2048 threads, so its threads run out, not its registers


@triton.jit
def _spin(flag, arrived, limit, ON_A_GPU: tl.constexpr):  # type: ignore[no-untyped-def]
    """Until `flag` is not zero; at most `limit` nanoseconds, or turns where there is no clock."""
    tl.atomic_add(arrived, 1)
    if ON_A_GPU:
        start = globaltimer()
    passed = tl.full((), 0, tl.int64)
    # Volatile: the flag is written by a copy engine meanwhile, and must be read from memory in every turn.
    going = tl.load(flag, volatile=True) == 0
    while going:
        if ON_A_GPU:
            passed = globaltimer() - start
        else:
            passed += 1
        going = (tl.load(flag, volatile=True) == 0) & (passed < limit)


def programs(multiprocessors: int, threads_per_multiprocessor: int) -> int:
    """How many programs together occupy all threads of all SMs, so that no other block of threads fits anywhere."""
    per_sm, rest = divmod(threads_per_multiprocessor, 32 * _WARPS)
    if rest:
        raise ValueError(f"{threads_per_multiprocessor} threads per SM are no multiple of {32 * _WARPS}")
    return multiprocessors * per_sm


def launch(flag: torch.Tensor, arrived: torch.Tensor, *, count: int, limit: int) -> None:
    """Issue `count` programs to the current stream.

    flag: int32[1]; the programs end when it is not zero. arrived: int32[1], each program adds one when it begins.
    limit: in nanoseconds, so that nothing can hang; in Triton's interpreter, turns.
    """
    kernel: Any = _spin
    kernel[(count,)](flag, arrived, limit, ON_A_GPU=flag.is_cuda, num_warps=_WARPS, maxnreg=_REGISTERS)
