"""Batches of any structure move to the device whole."""

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any

import pytest
import torch
from lookaheads import META, Told, ahead
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.loop.lookahead import to_device

Named = namedtuple("Named", ["x", "label"])


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: torch.Tensor
    name: str


@dataclasses.dataclass
class Late:
    x: torch.Tensor
    late: Any = dataclasses.field(init=False)


@dataclasses.dataclass
class OwnTo:
    x: torch.Tensor
    blocking: bool | None = None

    def to(self, device, non_blocking=False):
        return OwnTo(self.x.to(device), not non_blocking)


class PlainTo:
    def __init__(self, x):
        self.x = x

    def to(self, device):
        return PlainTo(self.x.to(device))


class InPlace:
    """Its `to` returns nothing."""

    def __init__(self, x):
        self.x = x

    def to(self, device, non_blocking=False):
        self.x = self.x.to(device, non_blocking=non_blocking)


def one() -> torch.Tensor:
    return torch.ones(2)


def test_batches_move_whole():
    count: dict[str, torch.Tensor] = defaultdict(one, x=one())
    batch = {
        "tensor": one(),
        "named": Named(one(), "l"),
        "tuple": (one(), [one(), 3, None]),
        "kjt": KeyedJaggedTensor(["a"], torch.tensor([1]), lengths=torch.tensor([1])),
        "frozen": Frozen(one(), "n"),
        "late": Late(one()),
        "own": OwnTo(one()),
        "plain": PlainTo(one()),
        "ordered": OrderedDict(x=one()),
        "default": count,
    }
    moved = to_device(batch, META)
    assert moved["tensor"].device == moved["named"].x.device == moved["tuple"][0].device == META
    assert isinstance(moved["named"], Named)
    assert moved["named"].label == "l"
    assert moved["tuple"][1][0].device == META
    assert moved["tuple"][1][1:] == [3, None]
    assert moved["kjt"].values().device == moved["kjt"].lengths().device == META
    assert moved["frozen"].x.device == META
    assert moved["frozen"].name == "n"
    assert moved["late"].x.device == META
    assert not hasattr(moved["late"], "late")
    assert moved["own"].x.device == META
    assert moved["own"].blocking is False
    assert moved["plain"].x.device == META
    assert isinstance(moved["ordered"], OrderedDict)
    assert isinstance(moved["default"], defaultdict)
    assert moved["default"]["x"].device == moved["ordered"]["x"].device == META
    assert batch["tensor"].device == batch["frozen"].x.device == count["x"].device == torch.device("cpu")


def test_a_batch_that_moves_in_place():
    batch = InPlace(one())
    assert to_device(batch, META) is batch
    assert batch.x.device == META
    first, second = InPlace(one()), {"inside": InPlace(one())}
    moved, _ = ahead([first, second], Told(), META)
    assert moved is first
    assert to_device(second, META)["inside"].x.device == META


def test_what_is_not_understood_stays():
    for value in (None, 3, "text", Frozen, MappingProxyType({"x": one()}), object()):
        assert to_device(value, META) is value
    batch = {"x": one()}
    assert to_device(batch, None) is batch


def test_batches_are_announced_on_the_device():
    told = Told()
    (batch,) = ahead([{"x": one()}], told, META)
    announced, held = told.events[0][1], told.events[2][1]
    assert batch["x"].device == META
    assert announced is held
    assert held is batch


def test_an_error_of_moving_is_the_loader_s():
    class Stuck:
        def to(self, device):
            raise MemoryError("out of memory")

    told = Told()
    batches = ahead([{"x": one()}, Stuck()], told, META)
    next(batches)
    assert told.events[1] == ("fail", "out of memory")
    with pytest.raises(MemoryError):
        next(batches)
