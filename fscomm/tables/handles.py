"""The tensors by which a program looks at tables and optimizer state: earlier updates are completed before each look.

Such a *handle* is any tensor over a table's memory that Python holds: a parameter, what a `state_dict()` once gave, a
shard, the state of a fused optimizer, `.data` and other views of all these. While the block lasts, each has a class
that sees every operation (`__torch_function__`). What an operation gives is a handle, too, if it lies in that memory.
Memory that leaves torch (a numpy array) cannot be watched: while it is held, `handed_out` says so.

Not watched are the tensors that the kernels themselves use, and arrays that were made before the block.
"""

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from fscomm.device import is_traced, not_compiled

_PROPERTIES = "dtype device layout shape ndim grad grad_fn is_leaf requires_grad _version"
_METHODS = "size dim numel stride storage_offset element_size is_contiguous is_floating_point data_ptr __len__"
_SAYS_NO_VALUE = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in _PROPERTIES.split()]
    + [getattr(torch.Tensor, name).__set__ for name in ("grad", "requires_grad")]
    + [getattr(torch.Tensor, name) for name in _METHODS.split()]
)
_LEAVES_TORCH = frozenset(
    getattr(torch.Tensor, name)
    for name in ("numpy", "__array__", "__dlpack__", "untyped_storage", "storage", "_typed_storage")
)
_CODE = (type, ModuleType, FunctionType, CodeType, FrameType)


class Handles:
    """Of the tables that the memory `own` of their kernels holds. `find` finds them.

    before: completes updates; called before an operation reads or writes. written: called after one that wrote.
    """

    def __init__(self, own: Iterable[torch.Tensor], before: Callable[[], None], written: Callable[[], None]) -> None:
        self._own = {id(tensor): tensor for tensor in own}
        self._memory = {_memory(tensor) for tensor in self._own.values()} - {None}
        self._before = before
        self.written = written
        self._classes: dict[type, type] = {}
        self._watched: dict[int, weakref.ref[torch.Tensor]] = {}
        self._outside: list[Callable[[], Any]] = []
        self.over = False

    def handed_out(self) -> bool:
        """Whether the program holds memory of the tables by something other than a tensor."""
        held = [each for each in self._outside if each() is not None]
        if len(held) < len(self._outside):
            self.written()  # perhaps, while it was held
        self._outside = held
        return bool(held)

    def close(self) -> None:
        """Give every handle its own class back."""
        self.over = True
        for reference in list(self._watched.values()):
            handle: Any = reference()
            if isinstance(handle, _Handle):
                handle.__class__ = handle.plain
        self._watched.clear()

    def watch(self, tensor: Any, memory: set[int | None]) -> None:
        """Watch a tensor that lies in `memory`, if that is of these tables."""
        kind = type(tensor)
        if self.over or memory.isdisjoint(self._memory) or issubclass(kind, _Handle) or id(tensor) in self._own:
            return
        if kind not in self._classes:
            self._classes[kind] = type(kind.__name__, (_Handle, kind), {"__slots__": (), "of": self, "plain": kind})
        tensor.__class__ = self._classes[kind]
        number = id(tensor)
        self._watched[number] = weakref.ref(tensor, lambda _: self._watched.pop(number, None))

    def look(self, function: Callable[..., Any]) -> None:
        if not self.over and function not in _SAYS_NO_VALUE:
            self._before()

    def note(self, function: Callable[..., Any], result: Any) -> None:
        """What an operation gave."""
        for tensor in _tensors(result):
            self.watch(tensor, _places(tensor))
        if function in _LEAVES_TORCH and not is_traced():
            try:
                self._outside.append(weakref.ref(result))
            except TypeError:
                self._outside.append(lambda: True)  # one cannot tell when it is dropped


def find(of: Sequence[Handles], roots: Iterable[object]) -> None:
    """Watch all tensors of the process that are handles. Where objects are frozen (`gc.freeze`), of those frozen only
    what `roots` hold."""
    objects = gc.get_objects()
    if gc.get_freeze_count():
        objects += _held(roots)
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, torch.Tensor)}
    for each in compress(objects, map(kinds.__contains__, map(type, objects))):  # of half a million, few are tensors
        places = _places(each)
        for handles in of:
            handles.watch(each, places)


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
    """In front of the class of a tensor. of: whose handle it is. plain: the class of the tensor."""

    __slots__ = ()
    of: Handles
    plain: Any

    @classmethod
    @not_compiled
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        return _run(function, args, options or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _run(self.plain.__deepcopy__, (self, memo), {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _run(self.plain.__reduce_ex__, (self, protocol), {})


def _run(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """`function` with handles as the tensors that they are; so results are to the bit, and of the types, as without."""
    given: list[tuple[Any, Any]] = [(tensor, type(tensor)) for tensor in _tensors((args, options))]
    handles = [(tensor, kind) for tensor, kind in given if issubclass(kind, _Handle)]
    owners = {kind.of: None for _, kind in handles}
    for owner in owners:
        owner.look(function)
    versions = [_version(tensor) for tensor, _ in handles]
    for tensor, kind in handles:
        tensor.__class__ = kind.plain
    try:
        result = function(*args, **options)
    finally:
        for tensor, kind in handles:
            if not kind.of.over:
                tensor.__class__ = kind
    if function not in _SAYS_NO_VALUE:
        for (tensor, kind), version in zip(handles, versions, strict=True):
            if _version(tensor) != version:
                kind.of.written()
        for owner in owners:
            owner.note(function, result)
    return result


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in what an operation gets or gives."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)


def _places(tensor: Any) -> set[int | None]:
    """Where the memory of a tensor begins; of a DTensor, that of this rank's part. None: it has none."""
    inner = getattr(tensor, "_local_tensor", None)
    if inner is None:
        return {_memory(tensor)}
    return {_memory(shard) for shard in (inner.local_shards() if hasattr(inner, "local_shards") else [inner])}


def _memory(tensor: torch.Tensor) -> int | None:
    with contextlib.suppress(Exception), torch._C.DisableTorchFunctionSubclass():  # of kinds that others have made
        return tensor.untyped_storage().data_ptr() or None
    return None


def _version(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return -1 if tensor.is_inference() else tensor._version
