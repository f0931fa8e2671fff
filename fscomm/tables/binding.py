"""What fscomm asks of a module that it serves, and which calls of modules are served.

Nothing is wrapped: a binding keeps its own copies of what a prefetch needs (input bucketizing), so the module itself,
its parameter names and its process group stay as they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from fscomm.plan.sharding_group import GroupLayout
from fscomm.tables.group_tables import Codecs, GroupTables, PooledTables, Tables
from fscomm.tables.maps import Maps

MOST_CALLS = 62  # of all modules in a step: a status word has one bit for each


class MakePart(NamedTuple):
    """rows: which rows of each tensor are of the part. make: the output of the part, of as many rows of each."""

    rows: list[slice]
    make: Callable[[list[torch.Tensor]], Any]


class ForwardSize(NamedTuple):
    """What one forward looks up in all tables of a module, or in those of one sharding group.

    name: of the module or the group. nbytes: of the embeddings that it returns. plainly: why the group runs plainly.
    """

    name: str
    ids: int
    nbytes: int
    plainly: str | None


@dataclass(slots=True, kw_only=True)
class Binding(ABC):
    """A served module: its groups that are served, and what stands in for its forward.

    Attributes:
        name: as the user sees it.
        layouts: [G] of its sharding groups.
        codecs: [G] how their rows and gradients travel.
        kernels: [G][...] fused kernels on this rank, with the interface of fbgemm's.
        plain: its own forward.
        maps: which row an id has, behind managed collision; None where ids are rows.
    """

    name: str
    module: Any
    layouts: list[GroupLayout]
    codecs: list[Codecs]
    kernels: list[list[Any]]
    plain: Callable[..., Any]
    maps: Maps | None = None

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the tables of this rank lie."""

    @property
    @abstractmethod
    def process_group(self) -> Any:
        """Of the ranks that share the tables."""

    @property
    def in_part(self) -> bool:
        """Whether some of its groups run plainly, inside the forward of those that are served."""
        return False

    @property
    def whole_batches_only(self) -> str | None:
        """Why parts of a batch give other bits than the whole, or None."""
        return None

    @property
    def tells_rows(self) -> bool:
        """Whether its forward gives the rows to which `maps` have mapped the ids, too."""
        return False

    def learn(self, given: list[Any], rows: Sequence[np.ndarray | None]) -> None:
        """Add to what `prepare` gave for `output` the rows int64[N] of each group, where it tells them."""
        raise NotImplementedError

    @abstractmethod
    def divide_by(self, group: int) -> Sequence[int]:
        """What the gradients of the group are divided by before they update rows, one number after the other."""

    @abstractmethod
    def proxy_targets(self, group: int) -> list[Any]:
        """Whose forward reads the tables: the fused kernels, or what looks up nothing where this rank has none."""

    def create_input_dists(self, features: Any) -> None:
        """The training thread is about to announce features. Before `prepare` changes the module beside its forward."""
        del features

    @abstractmethod
    def prepare(self, parts: Sequence[tuple[Any, Any]]) -> tuple[list[list[Any]], list[Any]]:
        """For each part of a step what `output` needs, and [G] what is asked of the owners. No collective. In the ids
        worker.

        parts: the features of each, and the same in host memory, or None: if they are there no device is waited for.
        """

    @abstractmethod
    def output(self, features: Any, given: list[Any], rows: list[torch.Tensor]) -> Any:
        """What the module's forward returns for `features`, from what `prepare` gave for them and the output rows of
        each group. Groups that run plainly do so in here; only then it blocks."""

    @abstractmethod
    def cut(self, output: Any, ends: Sequence[int]) -> tuple[list[torch.Tensor], list["MakePart"]]:
        """The tensors of what a forward of a whole step gave; and for each of its parts, `ends` the samples at which
        they end, what makes the output of the part from these tensors, cut or other ones in their place."""

    @abstractmethod
    def forward_sizes(self, features: Any) -> list[ForwardSize]:
        """What a forward looks up; by sharding group where some of them run plainly."""

    @abstractmethod
    def on_gradient(self, output: Any, then: Callable[[], None]) -> None:
        """Call `then` whenever backward comes to one of the tensors of `output`, which the module's forward gave."""

    @abstractmethod
    def around_wait(self, output: Any, guard: Callable[[], AbstractContextManager[None]]) -> None:
        """Let a `guard()` be around the wait for what the module's forward gave, if it is to be waited for."""

    def tables(self, group: int) -> GroupTables:
        layout = self.layouts[group]
        kind: type[GroupTables] = Tables if layout.pooling is None else PooledTables
        return kind(
            self.kernels[group],
            dim=layout.dim,
            codecs=self.codecs[group],
            divide_by=self.divide_by(group),
            where=self.device,
        )


class ServedModules:
    """All of them, and their sharding groups. Lists are by module [M] or by group [G]: groups are numbered over all.

    A module that may be called several times in a step stands in the list once for each call, in the order of the
    calls: entries with the same tables. Of each call it is known ahead what it looks up.

    Attributes:
        modules: [M] how TorchRec is reached.
        calls: [M] the entries of the same module.
        groups: [M] numbers of the groups of a module.
        module_of: [G] number of the module of a group.
        layouts: [G] how the tables of a group lie on the ranks.
        kernels: [G] its fused kernels on this rank.
    """

    def __init__(self, modules: Sequence[Binding]) -> None:
        self.modules = modules
        self.module_of = [m for m, module in enumerate(modules) for _ in module.layouts]
        self.groups = [
            range(self.module_of.index(m), self.module_of.index(m) + len(module.layouts))
            for m, module in enumerate(modules)
        ]
        self.calls = [_same_module(modules, m) for m in range(len(modules))]
        self.layouts = [layout for module in modules for layout in module.layouts]
        self.kernels = [kernels for module in modules for kernels in module.kernels]

    def tables(self) -> list[GroupTables]:
        """[G] the tables of every group, with shadows for one worker."""
        return [module.tables(number) for module in self.modules for number in range(len(module.layouts))]

    def pooled(self, m: int) -> bool:
        """Whether the tables of module m are pooled."""
        return self.layouts[self.groups[m].start].pooling is not None

    def same_tables(self, group: int) -> list[int]:
        """This group, in all calls of its module."""
        m = self.module_of[group]
        return [group - self.groups[m].start + self.groups[call].start for call in self.calls[m]]

    def modules_of(self, groups: Iterable[int]) -> list[int]:
        return sorted({self.module_of[g] for g in groups})


def _same_module(modules: Sequence[Binding], m: int) -> range:
    same = [i for i, each in enumerate(modules) if each.module is modules[m].module]
    return range(same[0], same[-1] + 1)
