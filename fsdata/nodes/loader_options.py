"""The arguments of a loader, checked."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fsdata.balance.options import Balance
from fsdata.schema import Schema
from fsdata.sources import ParquetSource

Uneven = Literal["drop", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """Arguments that stand on their own, checked."""

    batch_size: int
    max_tokens: int | None
    shuffle_window: int | float
    num_threads: int
    read_ahead: int
    memory: int | None
    prefetch: int
    pin: bool
    seed: int
    mix: str
    uneven: Uneven
    drop_last: bool
    timeout_s: float

    def __post_init__(self) -> None:
        check_integers(batch_size=(self.batch_size, 1), num_threads=(self.num_threads, 1), prefetch=(self.prefetch, 0))
        if self.max_tokens is not None:
            check_integers(max_tokens=(self.max_tokens, 1))
        check_order(self.shuffle_window, self.seed, self.mix)
        check_one_of("uneven", self.uneven, ("drop", "empty"))
        if not isinstance(self.drop_last, bool):
            raise ValueError(f"drop_last must be True or False, got {self.drop_last!r}")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, got {self.timeout_s!r}")

    def shared(self) -> dict[str, str]:
        """What all ranks must have been given alike."""
        return {name: repr(getattr(self, name)) for name in ("batch_size", "max_tokens", "uneven", "drop_last")}


def check_order(shuffle_window: int | float, seed: int, mix: str) -> None:
    check_integers(seed=(seed, 0))
    if not isinstance(shuffle_window, float):
        check_integers(shuffle_window=(shuffle_window, 1))
    elif not 0 < shuffle_window <= 1:
        raise ValueError(f"shuffle_window as a share of the epoch is above 0 and at most 1.0, got {shuffle_window!r}")
    check_one_of("mix", mix, ("sequential", "weighted", "time"))


def check_integers(**given: tuple[Any, int]) -> None:
    """name -> (value, the least that it may be)."""
    for name, (value, least) in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def check_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def can_pin(wanted: bool) -> bool:
    """Whether to pin; warns where it is wanted and there is no device."""
    if wanted and not torch.cuda.is_available():
        warnings.warn("pin_memory=True has no effect: no CUDA device is available", stacklevel=3)
        return False
    return wanted


def check_sources(sources: Sequence[ParquetSource], schema: Schema) -> None:
    """Raises TypeError or ValueError."""
    if not sources:
        raise ValueError("sources is empty: pass at least one ParquetSource")
    for source in sources:
        if not isinstance(source, ParquetSource):
            hint = f"; write ParquetSource({source!r})" if isinstance(source, str | os.PathLike) else ""
            raise TypeError(f"sources holds ParquetSource objects, got {type(source).__name__}: {source!r}{hint}")
    if not isinstance(schema, Schema):
        raise TypeError(f"schema must be a Schema, got {type(schema).__name__}")


def check_types(balance: object, adapt: object) -> None:
    """Raises TypeError."""
    if balance is not None and not isinstance(balance, Balance):
        raise TypeError(f"balance must be a Balance or None, got {balance!r}; write balance=Balance()")
    if adapt is not None and not callable(adapt):
        raise TypeError(f"adapt is a function of a Batch or None, got {adapt!r}")
