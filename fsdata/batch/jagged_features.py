"""`JaggedFeatures` replaces the KeyedJaggedTensor where torchrec is not installed."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fsdata.batch.jagged import Jagged


class JaggedFeatures(Mapping[str, Any]):
    """Key -> a jagged tensor of torch [B, lengths], int64, with `.values()` [T] and `.offsets()` [B + 1] like those of
    torchrec's JaggedTensor. Keys with equal lengths have one offsets tensor: torch requires that for operations on two
    jagged tensors.

    All values are in one tensor and all offsets in another, so a batch is moved to a device by two copies. The tensor
    of a key is constructed on first access, which takes torch a tenth of a millisecond.
    """

    def __init__(self, values: Tensor, offsets: Tensor, slices: Mapping[str, tuple[slice, int]]) -> None:
        """values: [T of all keys]; offsets: int64 [D, B + 1], distinct rows; slices: key -> (values, row of D)."""
        self._values, self._offsets, self._slices = values, offsets, slices
        self._rows = offsets.unbind()  # torch compares offsets by identity: one object for all keys of a row
        self._tensors: dict[str, Any] = {}

    @classmethod
    def from_lengths(cls, keys: tuple[str, ...], values: Tensor, lengths: Tensor, stride: int) -> "JaggedFeatures":
        """values: [sum of lengths], key after key; lengths: int64 [keys * stride], in host memory."""
        by_key = lengths.view(len(keys), stride)
        distinct: dict[bytes, int] = {}
        row_of = [distinct.setdefault(own.numpy().tobytes(), len(distinct)) for own in by_key]
        first = torch.tensor([row_of.index(row) for row in range(len(distinct))], dtype=torch.int64)
        offsets = torch.zeros(len(distinct), stride + 1, dtype=torch.int64)
        torch.cumsum(by_key[first], 1, out=offsets[:, 1:])
        ends = by_key.sum(1).cumsum(0).tolist()
        slices = zip(map(slice, [0, *ends], ends), row_of, strict=False)
        return cls(values, offsets.to(values.device), dict(zip(keys, slices, strict=True)))

    def flat(self) -> tuple[Tensor, Tensor]:
        """The arguments of `from_lengths`: (values, key after key; lengths int64 [keys, B])."""
        return self._values, self._offsets.diff()[[row for _, row in self._slices.values()]]

    def jagged(self, key: str) -> Jagged:
        """`self[key]` as a `Jagged`."""
        values, row = self._slices[key]
        return Jagged(self._values[values], self._rows[row])

    def __getitem__(self, key: str) -> Any:
        if key not in self._tensors:
            jagged = self.jagged(key)
            self._tensors[key] = torch.nested.nested_tensor_from_jagged(jagged.values, jagged.offsets)
        return self._tensors[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __len__(self) -> int:
        return len(self._slices)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "JaggedFeatures":
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "JaggedFeatures":
        return self._map(lambda tensor: tensor.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        self._values.record_stream(stream)
        self._offsets.record_stream(stream)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "JaggedFeatures":
        return JaggedFeatures(function(self._values), function(self._offsets), self._slices)
