"""The served modules and their sharding groups; groups are numbered over all modules."""

from collections.abc import Iterable, Sequence

from fscomm.tables.binding import Binding
from fscomm.tables.shadow_kernels import GroupTables


class ServedModules:
    """Lists are by module [M] or by group [G].

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

    def sent_with(self, group: int) -> int:
        """The same number for groups whose gradients are sent together: of all first calls, or of one later call."""
        m = self.module_of[group]
        return m if m != self.calls[m].start else 0

    def same_tables(self, group: int) -> list[int]:
        """This group, in all calls of its module."""
        m = self.module_of[group]
        return [group - self.groups[m].start + self.groups[call].start for call in self.calls[m]]

    def modules_of(self, groups: Iterable[int]) -> list[int]:
        return sorted({self.module_of[g] for g in groups})


def _same_module(modules: Sequence[Binding], m: int) -> range:
    same = [i for i, each in enumerate(modules) if each.module is modules[m].module]
    return range(same[0], same[-1] + 1)
