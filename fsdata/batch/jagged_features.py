"""What stands in for the KeyedJaggedTensor where torchrec is not installed."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fsdata.batch.jagged import Jagged


class JaggedFeatures(Mapping[str, Any]):
    """Key -> a jagged tensor of torch [B, lengths], int64: `.values()` [T] and `.offsets()` [B + 1], as a JaggedTensor
    of torchrec has them. Keys of the same lengths share their offsets: torch computes with two such tensors only then.

    One tensor has the values of all keys, one the offsets, so a batch goes to a device in two copies. The tensor of a
    key is made when it is asked for, which takes torch a tenth of a millisecond.
    """

    def __init__(self, values: Tensor, offsets: Tensor, places: Mapping[str, tuple[slice, int]]) -> None:
        """values: [T of all keys]; offsets: int64 [D, B + 1], each only once; places: key -> (values, row of D)."""
        self._values, self._offsets, self._places = values, offsets, places
        self._rows = offsets.unbind()  # one object for all keys that share it: torch asks for that
        self._made: dict[str, Any] = {}

    @classmethod
    def of(cls, keys: tuple[str, ...], values: Tensor, lengths: Tensor, stride: int) -> "JaggedFeatures":
        """values: [sum of lengths], key after key; lengths: int64 [keys * stride], in host memory."""
        by_key = lengths.view(len(keys), stride)
        known: dict[bytes, int] = {}
        row_of = [known.setdefault(own.numpy().tobytes(), len(known)) for own in by_key]
        first = torch.tensor([row_of.index(row) for row in range(len(known))], dtype=torch.int64)
        offsets = torch.zeros(len(known), stride + 1, dtype=torch.int64)
        torch.cumsum(by_key[first], 1, out=offsets[:, 1:])
        ends = by_key.sum(1).cumsum(0).tolist()
        places = zip(map(slice, [0, *ends], ends), row_of, strict=False)
        return cls(values, offsets.to(values.device), dict(zip(keys, places, strict=True)))

    def flat(self) -> tuple[Tensor, Tensor]:
        """What `of` makes it of: (values, key after key; lengths int64 [keys, B])."""
        return self._values, self._offsets.diff()[[row for _, row in self._places.values()]]

    def jagged(self, key: str) -> Jagged:
        """The same as `self[key]`, as a `Jagged`."""
        part, row = self._places[key]
        return Jagged(self._values[part], self._rows[row])

    def __getitem__(self, key: str) -> Any:
        if key not in self._made:
            found = self.jagged(key)
            self._made[key] = torch.nested.nested_tensor_from_jagged(found.values, found.offsets)
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "JaggedFeatures":
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "JaggedFeatures":
        return self._map(lambda tensor: tensor.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        self._values.record_stream(stream)
        self._offsets.record_stream(stream)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "JaggedFeatures":
        return JaggedFeatures(function(self._values), function(self._offsets), self._places)
