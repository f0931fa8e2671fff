"""Checks of the arguments of a loader, before any file is opened. `FreeScaleDataLoader` documents them."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from fsdata.options import boolean, integer, one_of, plain, positive
from fsdata.schema import Schema
from fsdata.sources import ParquetSource

Uneven = Literal["drop", "empty"]
UNEVEN = get_args(Uneven)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """The arguments that can be checked without files, schema or other ranks."""

    batch_size: int
    max_tokens: int | None
    num_threads: int
    read_ahead: int
    memory: int | None
    prefetch: int
    pin: bool | None
    uneven: Uneven
    drop_last: bool
    timeout_s: float

    def __post_init__(self) -> None:
        checked = {
            "batch_size": integer("batch_size", self.batch_size, 1),
            "max_tokens": integer("max_tokens", self.max_tokens, 1, optional=True),
            "num_threads": integer("num_threads", self.num_threads, 1),
            "prefetch": integer("prefetch", self.prefetch, 0),
            "drop_last": boolean("drop_last", self.drop_last),
            "uneven": one_of("uneven", self.uneven, UNEVEN),
            "timeout_s": positive("timeout_s", self.timeout_s, finite=False),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def shared(self) -> dict[str, str]:
        """The options that must be equal on all ranks, for their comparison."""
        return {name: repr(getattr(self, name)) for name in ("batch_size", "max_tokens", "uneven", "drop_last")}


def checked_order(shuffle: Any, shuffle_window: Any, seed: Any) -> dict[str, Any]:
    """The options that determine the order of rows, by name."""
    window = plain(shuffle_window)
    if not isinstance(window, float):
        window = integer("shuffle_window", window, 1)
    elif not 0 < window <= 1:
        raise ValueError(f"shuffle_window as a share of the epoch is above 0 and at most 1.0, got {shuffle_window!r}")
    return {"shuffle": boolean("shuffle", shuffle), "shuffle_window": window, "seed": integer("seed", seed, 0)}


def can_pin(wanted: bool | None) -> bool | None:
    """Whether to pin memory; None: see `follows_device`. Warns if it is requested and there is no device."""
    if wanted is None:
        return None
    if boolean("pin_memory", wanted) and not torch.cuda.is_available():
        warnings.warn("pin_memory=True has no effect: no CUDA device is available", stacklevel=3)
        return False
    return bool(wanted)


def pins_now(pin: bool | None) -> bool:
    """Whether an epoch that begins now has page-locked batches. pin: the result of `can_pin`.

    None follows the device: True once this process uses a GPU, as it does before an epoch if its model is on one.
    Whether the machine has a GPU is not the question: in a loop on the CPU, page-locked memory would start CUDA and
    take some hundred MB of a GPU that nothing else in the process uses. And `torch.cuda.is_available()` may start CUDA,
    too, after which children forked from this process cannot use it.
    """
    return torch.cuda.is_initialized() if pin is None else pin


def check_sources(sources: Sequence[ParquetSource], schema: Schema) -> None:
    """Raises TypeError or ValueError."""
    if not sources:
        raise ValueError("sources is empty: pass at least one ParquetSource")
    for source in sources:
        if not isinstance(source, ParquetSource):
            hint = f"; write ParquetSource({source!r})" if isinstance(source, str | os.PathLike) else ""
            raise TypeError(f"sources takes ParquetSource objects, got {type(source).__name__}: {source!r}{hint}")
    if not isinstance(schema, Schema):
        raise TypeError(f"schema must be a Schema, got {type(schema).__name__}")


def check_adapt(adapt: object) -> None:
    """Raises TypeError."""
    if adapt is not None and not callable(adapt):
        raise TypeError(f"adapt is a function of a Batch or None, got {adapt!r}")
