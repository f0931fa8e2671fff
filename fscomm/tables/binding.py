"""What the engine needs of a module that it serves, and the list of all calls of modules that are served.

A binding wraps nothing. It has copies of what a prefetch needs (input bucketizing), so the module itself, its parameter
names and its process group stay as they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from fscomm.compose import tables_kind
from fscomm.device import Device
from fscomm.plan.group_plan import AskedIds
from fscomm.plan.sharding_group import GroupLayout
from fscomm.tables.forward_guard import ForwardGuard
from fscomm.tables.group_tables import Codecs, GroupTables
from fscomm.tables.turns import NO_TURNS, Turns, has_cache

MOST_CALLS = 62  # of all modules in a step: a status word has one bit for each


class MakePart(NamedTuple):
    """Makes the output of one part of a step. rows: its rows of each tensor. make: the output from these rows."""

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
    """A served module: those of its sharding groups that are served, and what replaces its forward.

    Attributes:
        name: as the user sees it.
        device: of the tables of this rank.
        process_group: of the ranks that share the tables.
        layouts: [G] the distribution of the tables of each group over the ranks.
        codecs: [G] how its rows and gradients are encoded.
        divide_by: [G] what its gradients are divided by before they update rows, one number after the other.
        kernels: [G][...] its fused kernels on this rank, with the interface of fbgemm's.
        proxied: [G][...] the modules whose forward reads the tables: the kernels or, on a rank without any, the look-up
            itself. So every rank has a proxy for every group, and all submit the same updates (see `lookups`).
        plain: the module's own forward.
        guard: what is asked where its own forward may give rows to other ids.
        plainly: why its other groups run plainly, by name.
    """

    name: str
    module: Any
    device: torch.device
    process_group: Any
    layouts: list[GroupLayout]
    codecs: list[Codecs]
    divide_by: list[Sequence[int]]
    kernels: list[list[Any]]
    proxied: list[list[Any]]
    plain: Callable[..., Any]
    guard: ForwardGuard = field(default_factory=ForwardGuard)
    plainly: Mapping[str, str] = field(default_factory=dict)

    @property
    def partly_served(self) -> bool:
        """Whether some groups run plainly, inside a forward whose other groups are served."""
        return bool(self.plainly)

    @property
    def whole_batches_only(self) -> str | None:
        """Why a forward of each part of a batch is not bitwise that of the whole batch, or None."""
        return None

    @property
    def tells_rows(self) -> bool:
        """Whether its forward returns which row each id has, too."""
        return False

    def learn(self, given: list[Any], rows: Sequence[np.ndarray | None]) -> None:
        """Add to what `prepare` gave for `output` the rows int64[N] of each group, where it tells them."""
        raise NotImplementedError

    def create_input_dists(self, features: Any) -> None:
        """Called by the training thread before features are announced. Input dists that TorchRec creates at the first
        forward are created here: otherwise the ids worker would do it in `prepare`, beside that forward."""
        del features

    @abstractmethod
    def prepare(self, features: Any, on_host: Any) -> tuple[list[Any], list[AskedIds]]:
        """(What `output` needs for these features, [G] what is asked of the owners.) No collective. Called by the ids
        worker.

        on_host: the same in host memory, or None. With these it does not wait for a device.
        """

    def prepare_step(self, parts: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
        """([k] what `output` needs for each part, [G] what the plan of each group makes a request of.) parts: [k]
        arguments of `prepare`."""
        given, asked = zip(*(self.prepare(*part) for part in parts), strict=True)
        return list(given), list(zip(*asked, strict=True))

    @abstractmethod
    def output(self, features: Any, given: list[Any], rows: list[torch.Tensor]) -> Any:
        """What the module's forward returns for `features`, from what `prepare` gave for them and the output rows of
        each group. Groups that run plainly do so in here; only then it blocks."""

    @abstractmethod
    def cut(self, output: Any, ends: Sequence[int]) -> tuple[list[torch.Tensor], list["MakePart"]]:
        """(the tensors of `output`, that of a whole step, [k] what makes the output of each of its parts from such
        tensors). ends: the sample at which each part ends."""

    @abstractmethod
    def forward_sizes(self, features: Any) -> list[ForwardSize]:
        """What a forward looks up; by sharding group where some of them run plainly."""

    @abstractmethod
    def on_gradient(self, output: Any, then: Callable[[], None]) -> None:
        """Call `then` whenever backward reaches a tensor of `output`, which the module's forward returned."""

    @abstractmethod
    def around_wait(self, output: Any, guard: Callable[[], AbstractContextManager[None]]) -> None:
        """Enter a `guard()` around the wait for `output`, where that is an awaitable."""

    def tables(self, group: int, turns_of: Callable[[Any], Turns]) -> GroupTables:
        layout = self.layouts[group]
        kind: type[GroupTables] = tables_kind(layout, GroupTables)
        return kind(
            self.kernels[group],
            dim=layout.dim,
            codecs=self.codecs[group],
            divide_by=self.divide_by[group],
            where=self.device,
            turns_of=turns_of,
        )


class ServedModules:
    """All served modules and their sharding groups. Lists are by module [M] or by group [G]; groups are numbered over
    all modules.

    A module that may be called several times in a step has one entry for each call, in the order of the calls: entries
    with the same tables, but features of their own, each known ahead.

    Attributes:
        calls: [M] the entries of the same module.
        groups: [M] the numbers of a module's groups.
        module_of: [G] the number of a group's module.
        kernels: [G] the fused kernels on this rank.
    """

    def __init__(self, modules: Sequence[Binding], device: Device) -> None:
        self.modules = modules
        self.module_of = [m for m, module in enumerate(modules) for _ in module.layouts]
        self.groups = [
            range(self.module_of.index(m), self.module_of.index(m) + len(module.layouts))
            for m, module in enumerate(modules)
        ]
        self.calls = [_same_module(modules, m) for m in range(len(modules))]
        self.layouts = [layout for module in modules for layout in module.layouts]
        self.kernels = [kernels for module in modules for kernels in module.kernels]
        with_cache = [kernel for kernels in self.kernels for kernel in kernels if has_cache(kernel)]
        self._turns = {id(kernel): Turns(device) for kernel in with_cache}

    def turns_of(self, kernel: Any) -> Turns:
        """Of a fused kernel, or of what stands for one on a rank without any."""
        return self._turns.get(id(kernel), NO_TURNS)

    def tables(self) -> list[GroupTables]:
        """[G] the tables of every group, with shadow kernels for one worker."""
        return [
            module.tables(number, self.turns_of) for module in self.modules for number in range(len(module.layouts))
        ]

    def mixes_classes(self, m: int) -> bool:
        """Whether what travels for module m may have rows of several classes."""
        return self.layouts[self.groups[m].start].mixes_classes

    def same_tables(self, group: int) -> list[int]:
        """The numbers of this group in all calls of its module."""
        m = self.module_of[group]
        return [group - self.groups[m].start + self.groups[call].start for call in self.calls[m]]


def _same_module(modules: Sequence[Binding], m: int) -> range:
    same = [i for i, each in enumerate(modules) if each.module is modules[m].module]
    return range(same[0], same[-1] + 1)
