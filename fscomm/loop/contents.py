"""What tensors hold, to notice a change that torch does not tell: by numpy, through `.data`, of reused memory."""

from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from fscomm.plan.hash_tables import checksum


def contents(tensor: Tensor | None) -> tuple[int, int, int]:
    """Where a tensor lies, its version and a checksum of its bytes; without the latter off the CPU."""
    if tensor is None:
        return 0, 0, 0
    version = 0 if tensor.is_inference() else tensor._version
    with suppress(RuntimeError, TypeError):  # of a kind without memory, or without bytes that can be looked at
        return tensor.data_ptr(), version, _checksum(tensor) if tensor.device.type == "cpu" else 0
    return 0, version, 0


def _checksum(tensor: Tensor) -> int:
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    whole = len(flat) // 8 * 8
    rest = int.from_bytes(flat[whole:].tobytes(), "little")
    return int(checksum(flat[:whole].view(np.uint64))) + (rest << 64)
