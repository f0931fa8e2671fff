"""The tensors through which a program reads and writes tables and optimizer state: earlier updates are completed first.

Such a *handle* is any tensor over a table's memory that Python refers to: a parameter, what a `state_dict()` returned,
a shard, the state of a fused optimizer, `.data` and other views of all these. While the block lasts, each has a class
that sees every operation (`__torch_function__`). The result of an operation is a handle, too, if it is in that memory.
Functions that torch calls without asking that class are intercepted (`unseen_calls.py`).

Memory that leaves torch (a numpy array, a DLPack capsule, a storage) cannot be watched. `handed_out` says whether the
program still refers to it. A reference that was made and dropped counts as one read and one write. torch counts the
references to a storage: each tensor over it is one, however it was made (by `q.data = p.detach()`, in a DLPack capsule,
in a C++ extension). The Python object of a storage is different: torch keeps it as long as the memory lives, whether or
not the program still refers to it. The reference count of that object shows which.

Not watched are the tensors that the kernels themselves use, and arrays that were made before the block.
"""

import contextlib
import gc
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from fscomm.device import is_traced, not_compiled

_PROPERTIES = "dtype device layout shape ndim grad grad_fn is_leaf requires_grad _version"
_METHODS = "size dim numel stride storage_offset element_size is_contiguous is_floating_point __len__"
# They read no value: `p.shape` in a training loop must not wait for updates.
_READS_NO_VALUE = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in _PROPERTIES.split()]
    + [getattr(torch.Tensor, name).__set__ for name in ("grad", "requires_grad")]
    + [getattr(torch.Tensor, name) for name in _METHODS.split()]
)
_RETURNS_AN_ARRAY = frozenset(getattr(torch.Tensor, name) for name in ("numpy", "__array__"))
# Accesses through an address, or a storage, are not seen: the table counts as written when the address is returned.
_RETURNS_AN_ADDRESS = frozenset(
    getattr(torch.Tensor, name) for name in ("untyped_storage", "storage", "_typed_storage", "data_ptr", "__dlpack__")
)
_CHANGES_NO_VERSION = ("_fused_", "_amp_")  # torch's own functions that write, and do not count it
_COUNTS = 8  # another thread may refer to the memory for a moment: only what lasts counts
_PAUSE_S = 1e-4
_CODE = (type, ModuleType, FunctionType, CodeType, FrameType)


class Handles:
    """The handles of the tables of one module. `find` finds them.

    own: the tensors of its kernels, which are not watched. tables: those of them that have rows and their optimizer
    state, to which references are counted. before: completes updates; called before an operation reads or writes.
    written: called after one that wrote.
    """

    def __init__(
        self,
        own: Iterable[torch.Tensor],
        tables: Iterable[torch.Tensor],
        before: Callable[[], None],
        written: Callable[[], None],
    ) -> None:
        self._own = {id(tensor): tensor for tensor in own}
        self._memory = {address_of(tensor) for tensor in self._own.values()} - {None}
        storages = ((address_of(tensor), tensor.untyped_storage()) for tensor in tables)
        self._storages = {address: each for address, each in storages if address is not None}
        self._before = before
        self.written = written
        self._classes: dict[type, type] = {}
        # By `id`, each tensor that is watched and the address of its storage.
        self._watched: dict[int, tuple[weakref.ref[torch.Tensor], int | None]] = {}
        self._accepted: dict[int, int] = {}  # by storage, references that are not counted
        self._unknown: Counter[int] = Counter()  # other references that lasted when they were last counted
        self._outside: list[weakref.ref[Any]] = []
        self.over = False
        self.accept()

    def handed_out(self) -> bool:
        """Whether the program refers to memory of the tables by something else than a watched tensor."""
        held = [each for each in self._outside if each() is not None]
        if len(held) < len(self._outside):
            self.written()  # perhaps, before the reference was dropped
        self._outside = held
        self._count_references()
        return bool(held) or any(self._unknown.values())

    def accept(self) -> None:
        """Accept the present references from outside: the program uses them only when no update is pending."""
        self._outside.clear()
        self._unknown.clear()
        known = self._known()
        self._accepted = {address: self._count(address) - known[address] for address in self._storages}

    def close(self) -> None:
        """Give every handle its class back."""
        self.over = True
        for reference, _ in list(self._watched.values()):
            handle: Any = reference()
            if isinstance(handle, _Handle):
                handle.__class__ = handle.plain
        self._watched.clear()

    def hold(self, where: set[int | None]) -> bool:
        """Whether memory at one of these addresses is that of these tables."""
        return not (self.over or where.isdisjoint(self._memory))

    def watch(self, tensor: Any, where: set[int | None]) -> None:
        """Watch a tensor whose memory is at `where`, if that is of these tables."""
        kind, number = type(tensor), id(tensor)
        # The kernels' own tensors keep their class: an update of a worker would wait for itself.
        if not self.hold(where) or issubclass(kind, _Handle) or number in self._own or number in self._watched:
            return
        if kind not in self._classes:
            self._classes[kind] = type(kind.__name__, (_Handle, kind), {"__slots__": (), "of": self, "plain": kind})
        # The object itself gets another class: optimizers, autograd and the program refer to this very tensor.
        tensor.__class__ = self._classes[kind]
        forget: Callable[[Any], Any] = lambda _: self._watched.pop(number, None)  # noqa: E731
        # Of a DTensor the address is None: the tensor inside it refers to the memory, and is watched, too.
        self._watched[number] = weakref.ref(tensor, forget), address_of(tensor)

    def look(self, function: Callable[..., Any] | None = None) -> None:
        """Complete updates: the program is about to call `function` with a handle."""
        if not self.over and function not in _READS_NO_VALUE:
            self._before()

    def note(self, function: Callable[..., Any] | None, result: Any) -> None:
        """Watch those tensors of an operation's result that are handles. function: of torch, if it is one."""
        for tensor in tensors_in(result):
            self.watch(tensor, addresses(tensor))
        if function in _RETURNS_AN_ARRAY and not is_traced():
            self.hand_out(result, getattr(result, "base", None))
        if function in _RETURNS_AN_ADDRESS and not is_traced():
            self.written()

    def hand_out(self, by: Any, tensor: Any) -> None:
        """The program has the memory, outside of torch, as long as `by` lives, which refers to `tensor`."""
        self._outside.append(weakref.ref(by))
        if isinstance(tensor, torch.Tensor):  # known: it need not be searched for
            self.watch(tensor, addresses(tensor))

    def _known(self) -> Counter[int | None]:
        """Number of watched tensors, by the address of their storage. Other threads may drop some meanwhile."""
        return Counter(address for _, address in list(self._watched.values()))

    def _count(self, address: int) -> int:
        storage = self._storages[address]
        # The former counts tensors, the latter Python's own references to the storage object.
        return torch._C._storage_Use_Count(storage._cdata) + sys.getrefcount(storage)

    def _others(self, address: int, known: Counter[int | None]) -> int:
        """References beside those of `known` tensors and the accepted ones; negative if there are fewer."""
        return self._count(address) - known[address] - self._accepted[address]

    def _count_references(self) -> None:
        """Watch aliases that were made without an operation on a handle; count references of other kinds."""
        last, known, found = self._unknown, self._known(), False
        for address in self._storages:
            unknown = self._others(address, known)
            for _ in range(_COUNTS):
                if unknown <= last[address]:
                    break
                time.sleep(_PAUSE_S)
                unknown = self._others(address, self._known())
            if unknown > last[address] and not found:  # perhaps an alias, which need not hold updates back for good
                find([self], [])
                found = True
            if found:
                unknown = self._others(address, self._known())
            if found or unknown < last[address]:
                self.written()  # perhaps, before it was found or while it was held
            last[address] = max(unknown, 0)


def address_of(tensor: torch.Tensor) -> int | None:
    """Of the storage of a tensor; None if it has none."""
    with contextlib.suppress(Exception), torch._C.DisableTorchFunctionSubclass():  # of kinds that others have made
        return tensor.untyped_storage().data_ptr() or None
    return None


def addresses(tensor: torch.Tensor) -> set[int | None]:
    """Of the storages of a tensor; of a DTensor, those of its shards on this rank. None: it has none."""
    inner = getattr(tensor, "_local_tensor", None)
    if inner is None:
        return {address_of(tensor)}
    return {address_of(shard) for shard in (inner.local_shards() if hasattr(inner, "local_shards") else [inner])}


def find(of: Sequence[Handles], roots: Iterable[object]) -> None:
    """Watch all tensors of the process that are handles. Where objects are frozen (`gc.freeze`), of those frozen only
    what `roots` hold."""
    kinds = _subclasses(torch.Tensor)
    # Objects refer to their class. A list of all objects would also refer to tuples that another thread is filling,
    # whose `tuple(generator)` raises a SystemError then.
    found = [each for each in gc.get_referrers(*kinds) if type(each) in kinds]
    if gc.get_freeze_count():
        found += [each for each in _held(roots) if type(each) in kinds]
    for each in found:
        where = addresses(each)
        for handles in of:
            handles.watch(each, where)


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_subclasses, type.__subclasses__(kind)))


def _held(roots: Iterable[object]) -> list[object]:
    """All that can be reached from `roots`, but not by way of code."""
    found = {id(root): root for root in roots}
    new = list(found.values())
    while new:
        held = {id(each): each for each in gc.get_referents(*new) if not isinstance(each, _CODE)}
        new = [each for number, each in held.items() if number not in found]
        found |= held
    return list(found.values())


class _Handle:
    """The first base of the class of a handle; `plain` is the other one, the tensor's own class."""

    __slots__ = ()
    of: Handles
    plain: Any

    @classmethod
    @not_compiled
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        return run(function, args, options or {})

    # torch calls these without `__torch_function__`.

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return run(self.plain.__deepcopy__, (self, memo), {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        return run(self.plain.__reduce_ex__, (self, protocol), {})

    def as_subclass(self, kind: Any) -> Any:
        return run(self.plain.as_subclass, (self, kind), {})


def run(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Call `function` with handles as tensors of their own classes: it returns what it would without fscomm."""
    given: list[tuple[Any, Any]] = [(tensor, type(tensor)) for tensor in tensors_in((args, options))]
    handles = [(tensor, kind) for tensor, kind in given if issubclass(kind, _Handle)]
    owners = list({kind.of: None for _, kind in handles})
    for owner in owners:
        owner.look(function)
    versions = [_version(tensor) for tensor, _ in handles]
    # To their own classes, not `DisableTorchFunctionSubclass`: a ShardedTensor has a `__torch_function__` of its own.
    for tensor, kind in handles:
        tensor.__class__ = kind.plain
    try:
        if function in _READS_NO_VALUE:
            return function(*args, **options)
        with _saved_by_autograd(owners):
            result = function(*args, **options)
    finally:
        for tensor, kind in handles:
            if not kind.of.over:  # the function itself may have left the block
                tensor.__class__ = kind
    writes = _writes(function, options)
    for (tensor, kind), version in zip(handles, versions, strict=True):
        if writes or _version(tensor) != version:
            kind.of.written()
    for owner in owners:
        owner.note(function, result)
    return result


def _writes(function: Any, options: dict[str, Any]) -> bool:
    """Whether a function may write a tensor without counting up its version, as operators of other libraries may."""
    if isinstance(function, torch._ops.OpOverload):
        return bool(function._schema.is_mutable)
    if isinstance(function, torch._ops.OpOverloadPacket):
        return any(getattr(function, name)._schema.is_mutable for name in function.overloads())
    return "out" in options or getattr(function, "__name__", "").startswith(_CHANGES_NO_VERSION)


def _saved_by_autograd(owners: Sequence[Handles]) -> contextlib.AbstractContextManager[Any]:
    """Around an operation on handles: autograd's nodes read saved tables without `__torch_function__`.

    Where the program has hooks of its own on saved tensors, those decide what is saved: copies, or nothing.
    """
    hooks: Any = torch._C._autograd
    if (
        not torch.is_grad_enabled()
        or hooks._top_saved_tensors_default_hooks(False) is not None
        or not hooks._saved_tensors_hooks_is_enabled()
    ):
        return contextlib.nullcontext()

    def pack(tensor: torch.Tensor) -> torch.Tensor | Callable[[], torch.Tensor]:
        where = addresses(tensor)
        holding = [owner for owner in owners if owner.hold(where)]
        for owner in holding:
            owner.watch(tensor, where)
        return partial(_unpack, tensor, _version(tensor), holding) if holding else tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved() if callable(saved) else saved)


def _unpack(tensor: torch.Tensor, version: int, owners: Sequence[Handles]) -> torch.Tensor:
    """A table that a node has saved at this version, for its backward: after the updates that the plain loop has done
    by then."""
    for owner in owners:
        owner.look()
    if (now := _version(tensor)) != version:  # where hooks are in use, torch does not compare them
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: a "
            f"table, or a view of it, of shape {list(tensor.shape)}, is at version {now}; expected version "
            f"{version} instead"
        )
    return tensor


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in the arguments or the result of an operation."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)


def _version(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return -1 if tensor.is_inference() else tensor._version
