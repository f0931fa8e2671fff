"""How long the samples of a batch are: noted when the batch comes, counted when its step has ended.

Letters: B samples of this rank.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fscomm.loop.kjt_paths import walk

Lengths = Mapping[str, torch.Tensor | np.ndarray]
"""Name of a sequence -> integers [B]."""


def batch_lengths(batch: Any) -> dict[str, torch.Tensor]:
    """Key -> integers [B], of every KeyedJaggedTensor in a batch; of equal keys, the first found."""
    found: dict[str, torch.Tensor] = {}
    for _, kjt in walk(batch):
        strides = list(getattr(kjt, "stride_per_key", lambda kjt=kjt: [kjt.stride()] * len(kjt.keys()))())
        for key, lengths in zip(kjt.keys(), kjt.lengths().split(strides), strict=True):
            found.setdefault(key, lengths)
    return found


class Noted:
    """The lengths of one batch. Lengths on a device are copied without waiting for it; `counted` reads the copy."""

    def __init__(self, batch: Any, read: Callable[[Any], Lengths]) -> None:
        self._lengths = {name: _copied(lengths) for name, lengths in read(batch).items()}

    def counted(self) -> dict[str, tuple[list[int], list[int]]]:
        """Sequence -> (lengths, ascending; how many samples have each). Call it once the step has ended on the device.

        Fields of one sequence have equal lengths: they are given once, under the name of the first.
        """
        return {
            name: (values.tolist(), counts.tolist())
            for name, lengths in _differing(self._lengths)
            for values, counts in [np.unique(lengths, return_counts=True)]
        }


def _copied(lengths: torch.Tensor | np.ndarray) -> torch.Tensor | np.ndarray:
    if isinstance(lengths, torch.Tensor) and lengths.is_cuda:
        return torch.empty(lengths.shape, dtype=lengths.dtype, pin_memory=True).copy_(lengths, non_blocking=True)
    return lengths


def _differing(lengths: Lengths) -> Iterator[tuple[str, np.ndarray]]:
    seen: set[bytes] = set()
    for name, given in lengths.items():
        array = np.asarray(given.detach() if isinstance(given, torch.Tensor) else given)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise TypeError(
                f"lengths of {name!r} are {array.dtype} {list(array.shape)}: integers [B] are needed, one for each "
                "sample; see BubbleMeter.watch(lengths=...)"
            )
        array = array.astype(np.int64)
        if (content := array.tobytes()) not in seen:
            seen.add(content)
            yield name, array
