"""Whoever looks at tables or optimizer states gets them with all updates done; afterwards everything is as before."""

import copy
import gc
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fscomm.tables.handles import Handles, find


class Table:
    """Whose pending update is done by `update`; `events` says what was called."""

    def __init__(self) -> None:
        self.own = nn.Parameter(torch.zeros(6))
        self.weight = nn.Parameter(self.own.data[:4].view(2, 2))
        self.kept = {"shard": [self.own.detach()[2:]]}
        self.events: list[str] = []
        self.handles = Handles([self.own], self.update, lambda: self.events.append("written"))
        find([self.handles], [])

    def update(self) -> None:
        self.events.append("update")
        with torch.no_grad():
            self.own.fill_(1)


@pytest.fixture
def table() -> Iterator[Table]:
    made = Table()
    yield made
    made.handles.close()


def saved(value: Any) -> Any:
    """As it comes back from a file."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize(
    "read",
    [
        lambda weight: weight.sum() / 4,
        lambda weight: weight[0, 0],
        lambda weight: torch.stack([weight])[0, 1, 1],
        lambda weight: weight.tolist()[0][1],
        lambda weight: weight.data.flatten()[3],
        lambda weight: weight.detach().numpy()[1, 1],
        lambda weight: np.asarray(weight.detach()).mean(),
        lambda weight: copy.deepcopy(weight)[1, 0],
        lambda weight: pickle.loads(pickle.dumps(weight))[1, 0],
        lambda weight: saved({"w": weight})["w"][0, 0],
        lambda weight: float(repr(weight.tolist()[1][1])),
        lambda weight: torch.from_dlpack(weight.detach())[0, 1],
        lambda weight: nn.functional.embedding(torch.tensor([1]), weight)[0, 0],
        lambda weight: torch.zeros(2, 2).copy_(weight)[0, 0],
    ],
)
def test_every_way_to_read(table: Table, read: Callable[[Any], Any]) -> None:
    assert read(table.weight) == 1
    assert "update" in table.events
    assert "written" not in table.events


def test_what_was_taken_before_and_views_of_it(table: Table) -> None:
    assert table.kept["shard"][0][0] == 1
    table.events.clear()
    view = table.weight.data.T
    table.own.data.zero_()
    assert view.sum() == 4
    assert isinstance(view, torch.Tensor)
    assert isinstance(table.weight, nn.Parameter)
    table.events.clear()
    assert (view + 1 - view).sum() == 4
    assert (table.weight.detach().clone() * 2).sum() == 8
    assert type(table.weight.detach().clone()) is torch.Tensor, "it has memory of its own"


def test_what_says_nothing_about_values(table: Table) -> None:
    weight = table.weight
    assert (weight.shape, weight.dtype, weight.numel(), len(weight)) == ((2, 2), torch.float32, 4, 2)
    assert weight.requires_grad
    assert weight.grad is None
    weight.grad = None
    assert table.events == []


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.data.clamp_(0, 0.5),
        lambda weight: weight.detach().mul_(0.5),
        lambda weight: torch.mul(weight.detach(), 0.5, out=weight.detach()),
        lambda weight: weight.data.__setitem__(slice(None), 0.5),
        lambda weight: torch._foreach_mul_([weight.data], 0.5),
        lambda weight: nn.init.constant_(weight, 0.5),
    ],
)
def test_every_way_to_write(table: Table, write: Callable[[Any], Any]) -> None:
    """Pending updates would change what is written; rows fetched ahead do not have it."""
    write(table.weight)
    assert table.events.index("update") < table.events.index("written")
    assert table.own.tolist() == [0.5] * 4 + [1] * 2


def test_memory_that_leaves_torch_is_handed_out_as_long_as_somebody_holds_it(table: Table) -> None:
    assert not table.handles.handed_out()
    array = table.weight.detach().numpy()
    part = array[1:]
    del array
    gc.collect()
    assert table.handles.handed_out()
    assert "written" not in table.events
    del part
    gc.collect()
    assert not table.handles.handed_out()
    assert table.events[-1] == "written", "perhaps through the array"


def test_an_error_of_the_pending_updates_reaches_the_reader(table: Table) -> None:
    def broken() -> None:
        raise ConnectionError("a peer is gone")

    handles = Handles([table.own], broken, lambda: None)
    table.handles.close()
    find([handles], [])
    with pytest.raises(ConnectionError, match="a peer is gone"):
        table.weight.sum()
    handles.close()


def test_everything_is_put_back(table: Table) -> None:
    view = table.weight.data
    table.handles.close()
    assert [type(each) for each in (table.weight, view, table.kept["shard"][0])] == [
        nn.Parameter,
        torch.Tensor,
        torch.Tensor,
    ]
    assert table.weight.sum() == view.sum() == table.own[:4].sum()
    assert table.events == ["update"], "when `view` was made"


def test_frozen_objects_are_found_by_what_holds_them() -> None:
    other = Table()
    other.handles.close()
    other.events.clear()
    gc.freeze()
    try:
        handles = Handles([other.own], other.update, lambda: None)
        find([handles], [other])
        assert other.kept["shard"][0][0] == 1
        handles.close()
    finally:
        gc.unfreeze()
