"""What fscomm asks of a library whose modules it serves."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from fscomm.tables.binding import Binding
from fsranks.rank_context import RankContext

MOST_CALLS = 62  # of all modules in a step: a status word has one bit for each


class Library(Protocol):
    """Functions of a module of Python, such as `fscomm.tables.torchrec.torchrec_library`."""

    def sharded_modules(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """(name, module) of every outermost sharded module; names as the user sees them."""

    def problems(self, found: Mapping[str, Any], context: RankContext, calls: int) -> dict[str, str]:
        """Why modules cannot be served, as far as this rank can see. calls: of each in a step, at most."""

    def adds_parts(self, module: Any) -> list[Any]:
        """The process groups whose ranks add up the parts that they have of its vectors."""

    def bind(self, name: str, module: Any, ranks_per_host: int) -> Binding:
        """Describe `module`, of this `name` in the model. No collective."""

    def features_problem(self, features: Any) -> str | None:
        """Why these features cannot be prefetched, or None."""

    def make_features(
        self, keys: list[str], values: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None, stride: int
    ) -> Any:
        """A KJT [N] of `keys` [F], with lengths [F * stride]."""

    def asked(self, module: Any, features: Any) -> tuple[int, int]:
        """How many ids a forward of a module looks up, and the bytes of the embeddings that it gives for them."""


def of_all_ranks(problems: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What `Library.problems` said on each rank: a module runs plainly on all of them if one cannot serve it."""
    merged: dict[str, str] = {}
    for rank, of_rank in enumerate(problems):
        for name, why in of_rank.items():
            everywhere = all(other.get(name) == why for other in problems)
            merged.setdefault(name, why if everywhere else f"on rank {rank} {why}")
    return merged
