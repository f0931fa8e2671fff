"""The group of a job of one rank."""

import numpy as np
import torch


class Alone:
    """What an exchange asks of a `ControlGroup`, without anyone to talk to."""

    rank = 0

    def __init__(self) -> None:
        self.number = 0

    def all_gather(self, mine: np.ndarray) -> np.ndarray:
        """[1, ...]"""
        return mine[None].copy()

    def all_to_all(self, out: torch.Tensor, mine: torch.Tensor, received: list[int], sent: list[int]) -> None:
        out.copy_(mine)

    def abort(self, reason: str) -> None:
        """Nothing can block."""

    def close(self, reason: str) -> None:
        """Nothing is open."""
