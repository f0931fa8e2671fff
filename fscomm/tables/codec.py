"""How rows and gradients are encoded to travel."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Codec:
    """How rows, or strips of pooled vectors, of D columns travel.

    dtype, width: of what travels, and how many numbers of it stand for a row. encode: [n, k D] -> [n, k width].
    decode: back.
    """

    dtype: torch.dtype
    width: int
    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Codecs:
    """given: dtype of rows as the tables give them, before they are encoded."""

    given: torch.dtype
    rows: Codec
    gradients: Codec


def as_they_are(given: torch.dtype, dim: int) -> Codecs:
    """Of what is not quantised."""
    unchanged = Codec(given, dim, _same, _same)
    return Codecs(given, unchanged, unchanged)


def _same(values: torch.Tensor) -> torch.Tensor:
    return values
