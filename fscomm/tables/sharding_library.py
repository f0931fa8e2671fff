"""What fscomm asks of a library whose modules it serves."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from fscomm.tables.binding import Binding
from fsranks.rank_context import RankContext

_WRAPPERS = ("_dmp_wrapped_module", "module", "_orig_mod")  # what TorchRec, DDP and torch.compile add to a path
MOST_CALLS = 62  # of all modules in a step: a status word has one bit for each


class Library(Protocol):
    """Functions of a module of Python, such as `fscomm.tables.torchrec.torchrec_library`."""

    def sharded_modules(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """(name, module) of every outermost sharded module; names as the user sees them."""

    def parts(self, name: str, module: Any) -> list[str]:
        """What the sharding groups of the module of this name are called."""

    def problems(self, found: Mapping[str, Any], context: RankContext, calls: int) -> dict[str, str]:
        """Why modules, or parts of them, cannot be served, as far as this rank can see. calls: of each module in a
        step, at most."""

    def versions(self) -> dict[str, str]:
        """Of the packages that serving depends on."""

    def trial(self, module: Any) -> "Trial | None":
        """What is done with `module`, to be tried before it; None: nothing needs to be."""

    def adds_parts(self, name: str, module: Any, unserved: Collection[str]) -> dict[str, Any]:
        """By part, of those not in `unserved`: the process group whose ranks add up what they have of its vectors."""

    def bind(self, name: str, module: Any, ranks_per_host: int, plainly: Mapping[str, str]) -> Binding:
        """Describe `module`, of this `name` in the model. No collective. plainly: why parts of it are not served."""

    def features_problem(self, features: Any) -> str | None:
        """Why these features cannot be prefetched, or None."""

    def make_features(
        self, keys: list[str], values: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None, stride: int
    ) -> Any:
        """A KJT [N] of `keys` [F], with lengths [F * stride]."""

    def asked(self, module: Any, features: Any) -> tuple[int, int]:
        """How many ids a forward of a module looks up, and the bytes of the embeddings that it gives for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Of all modules of a kind.

    Attributes:
        kind: what the kind is called.
        make: a small module on the CPU, sharded over the ranks of a process group. The same at every call; it sets the
            seed of random numbers for what is done with it. Collective.
        batches: the features of each step, on this rank of the group.
        tensors: what the module's forward returned, as tensors.
    """

    kind: str
    make: Callable[[Any], Any]
    batches: Callable[[int], Sequence[Any]]
    tensors: Callable[[Any], list[torch.Tensor]]


def outermost(model: nn.Module, is_sharded: Callable[[nn.Module], bool]) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) of those sharded modules of `model` that lie in no other one; names without wrappers."""
    inside: list[str] = []
    for path, module in model.named_modules():
        if is_sharded(module) and not any(path.startswith(outer) for outer in inside):
            inside.append(path + ".")
            parts = (part for part in path.split(".") if part not in _WRAPPERS)
            yield ".".join(parts) or "model", module


def of_all_ranks(problems: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What `Library.problems` said on each rank: a module runs plainly on all of them if one cannot serve it."""
    merged: dict[str, str] = {}
    for rank, of_rank in enumerate(problems):
        for name, why in of_rank.items():
            everywhere = all(other.get(name) == why for other in problems)
            merged.setdefault(name, why if everywhere else f"on rank {rank} {why}")
    return merged


def in_whole(problems: Mapping[str, str], parts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The same problems, but a module none of whose `parts` can be served is named itself, in place of these."""
    merged = dict(problems)
    for name, of_module in parts.items():
        reasons = {part: merged[part] for part in of_module if part in merged}
        if reasons and (name in merged or len(reasons) == len(of_module)):
            merged = {part: why for part, why in merged.items() if part not in reasons}
            merged.setdefault(name, "; ".join(dict.fromkeys(reasons.values())))
    return merged
