"""Copies batches to a device, on a stream of their own: the host does not wait, and compute waits only where it uses a
batch. Copies from page-locked memory (`pin_memory=True` of a loader) do not block the host either.

All look-aheads of a block share the stream: torch hands out 32 of them in turn, so that one for every evaluation would
soon be a stream of the engine, and copies would wait for the work on that.
"""

import copy
import dataclasses
import inspect
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch

from fscomm.device import Mark, device_of
from fscomm.loop.kjt_paths import tensors_of
from fscomm.loop.tensors import memory_of, rebuilt

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(Generic[T]):
    """A batch on the device, and as the loader gave it; the same object where it does not move.

    Attributes:
        mark: of the copies.
        behind: gives a context: work that is issued in it runs after the copies, and host waits in it are for the
            copies only.
    """

    batch: T
    pulled: T
    mark: Mark = None
    behind: Callable[[], AbstractContextManager[None]] = nullcontext


class Moving:
    """To `where`; None: batches stay where they are. Any thread may begin and end."""

    def __init__(self, where: torch.device | None) -> None:
        self._where = where
        self._device = device_of(where or torch.device("cpu"))
        self._entering = threading.Lock()  # torch's context of a stream knows one way back: that of one thread

    def begin(self, batch: T) -> Moved[T]:
        if self._where is None:
            return Moved(batch=batch, pulled=batch)
        with self._issuing():
            moved = to_device(batch, self._where)
            return Moved(batch=moved, pulled=batch, mark=self._device.mark(), behind=self._issuing)

    def end(self, moved: Moved[T]) -> T:
        """Work that the calling thread issues from now on runs after the copies."""
        if self._where is not None:
            self._device.after(moved.mark)
            self._device.reads(*memory_on(self._where, moved.batch))
        return moved.batch

    def close(self) -> None:
        """No copies begin any more; those that did may still be waited for."""
        self._device.release()

    @contextmanager
    def _issuing(self) -> Iterator[None]:
        """To the stream of the copies."""
        with self._entering, self._stream:
            yield

    @cached_property
    def _stream(self) -> Any:
        return self._device.stream()


def memory_on(where: torch.device, batch: Any) -> Iterator[torch.Tensor]:
    """The tensors in a batch that lie on such a device, those of which others are made."""
    parts = (part for tensor in tensors_of(batch) if tensor is not None for part in memory_of(tensor))
    return (part for part in parts if part.device.type == where.type)


def to_device(value: Any, device: torch.device) -> Any:
    """A batch on `device`, copies not waited for: by its own `to`, else through mappings, lists, tuples, dataclasses.

    Other objects stay as they are, and so do tensors of the meta device, which have no contents.
    """
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else value.to(device, non_blocking=True)
    if callable(getattr(value, "to", None)):
        takes = inspect.signature(value.to).parameters
        moved: Any = value.to(device, non_blocking=True) if "non_blocking" in takes else value.to(device)
        return value if moved is None else moved  # None: it moved in place
    if isinstance(value, MutableMapping | list | tuple):
        return rebuilt(value, lambda item: to_device(item, device))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        moved = copy.copy(value)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                object.__setattr__(moved, field.name, to_device(getattr(value, field.name), device))
        return moved
    return value
