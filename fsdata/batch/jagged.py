"""Lists of different length in one tensor."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Jagged:
    """N rows of different length, one after another.

    Attributes:
        values: [sum of lengths, ...].
        offsets: int64 [N + 1], offsets[0] == 0 and offsets[-1] == len(values).
    """

    values: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def from_lengths(cls, values: torch.Tensor, lengths: torch.Tensor) -> "Jagged":
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=lengths.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return cls(values, offsets)

    @property
    def lengths(self) -> torch.Tensor:
        """int64 [N]."""
        return self.offsets[1:] - self.offsets[:-1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> torch.Tensor:
        """One row, a view. On CUDA reading the two offsets synchronises with the device."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a Jagged with {len(self)} rows")
        row %= len(self)
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[row] for row in range(len(self)))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Jagged":
        return Jagged(
            self.values.to(device, non_blocking=non_blocking), self.offsets.to(device, non_blocking=non_blocking)
        )

    def pin_memory(self) -> "Jagged":
        return Jagged(self.values.pin_memory(), self.offsets.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        self.values.record_stream(stream)
        self.offsets.record_stream(stream)
