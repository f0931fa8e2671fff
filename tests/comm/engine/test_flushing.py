"""Whoever looks at tables or optimizer states gets them with all updates done; afterwards everything is as before."""

import copy
import ctypes
import gc
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from exact import compare
from exact_configs import CONFIGS
from programs import operations_of, play
from torch import nn
from worlds import shared_world

from fscomm.tables.handles import Handles, find
from fscomm.tables.unseen_calls import intercept


class Table:
    """Whose pending update is done by `update`; `events` says what was called."""

    def __init__(self) -> None:
        self.own = nn.Parameter(torch.zeros(6))
        self.weight = nn.Parameter(self.own.data[:4].view(2, 2))
        self.kept = {"shard": [self.own.detach()[2:]]}
        self.events: list[str] = []
        self.handles = Handles([self.own], [self.own], self.update, lambda: self.events.append("written"))
        find([self.handles], [])
        self.handles.accept()
        self._end = intercept([self.handles], lambda: None)

    def close(self) -> None:
        if not self.handles.over:
            self._end()
            self.handles.close()

    def update(self) -> None:
        self.events.append("update")
        with torch.no_grad():
            self.own.fill_(1)


@pytest.fixture
def table() -> Iterator[Table]:
    gc.freeze()  # what was there before is not walked over again
    try:
        made = Table()
        yield made
        made.close()
    finally:
        gc.unfreeze()


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
        lambda weight: torch.vmap(lambda row: row.sum() / 2)(weight.detach())[0],
        lambda weight: nn.functional.embedding(torch.tensor([1]), weight)[0, 0],
        lambda weight: torch.zeros(2, 2).copy_(weight)[0, 0],
    ],
)
def test_every_way_to_read(table: Table, read: Callable[[Any], Any]) -> None:
    assert read(table.weight) == 1
    assert "update" in table.events


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


@pytest.mark.parametrize(
    "write",
    [
        torch.jit.trace(lambda x: x.mul_(0.5), torch.ones(2, 2)),
        lambda view: view.untyped_storage().copy_(torch.full((6,), 0.5).untyped_storage()),
        lambda view: ctypes.memmove(view.data_ptr(), np.full(4, 0.5, np.float32).tobytes(), 16),
    ],
)
def test_writes_that_no_class_sees(table: Table, write: Callable[[torch.Tensor], Any]) -> None:
    """Through a view that was made before."""
    view = table.weight.data
    table.events.clear()
    write(view)
    assert table.events.index("update") < table.events.index("written")
    assert table.own.tolist()[0] == 0.5


WAYS = {
    "terms of a loss": " ".join(f"next table_in_loss:{n} backward" for n in range(6)),
    "writes": " ".join(f"train_next write:{n}" for n in range(9)),
    "aliases": " ".join(f"train_next alias:{n} use_alias:0 use_alias:1" for n in range(9)),
}


def played(rank: int, size: int, way: str) -> list[str]:
    return compare(rank, size, CONFIGS["row"], play(operations_of(WAYS[way])))[0]


@pytest.mark.parametrize("way", WAYS)
def test_training_is_that_without_fscomm_whatever_reaches_the_tables(way: str) -> None:
    """By each variant that `programs.py` has: nodes of autograd, functions that ask no class, memory of others."""
    assert shared_world(2).run(played, way) == [[], []]


def collectives(rank: int, size: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    half = torch.full((2, 2), 0.5)
    for write in (
        lambda view: dist.scatter(view, [half], src=0),
        lambda view: dist.broadcast(view, src=0, async_op=True).wait(),
        lambda view: dist._broadcast_coalesced(group, [view], 1024, 0),  # type: ignore[attr-defined]
    ):
        table = Table()
        view = table.weight.data
        table.events.clear()
        write(view)
        assert table.events.index("update") < table.events.index("written")
        table.close()
        table.events.clear()
        write(view)
        assert table.events == []


def test_collectives_into_kept_views() -> None:
    shared_world(1).run(collectives)


def test_every_function_is_put_back() -> None:
    def functions() -> list[Any]:
        script = torch.jit.ScriptFunction.__call__, torch._C.ScriptMethod.__call__
        return [torch.to_dlpack, torch.utils.dlpack.to_dlpack, torch._C._to_dlpack, *script]

    before, first, second = functions(), Table(), Table()
    assert all(now != then for now, then in zip(functions(), before, strict=True))
    for each in (first, second):
        assert functions() != before
        each.close()
    assert functions() == before


@pytest.mark.usefixtures("table")
def test_compiled_transforms_are_one_graph_still() -> None:
    for function in (torch.vmap(torch.sin), torch.func.grad(lambda x: x.pow(2).sum())):
        expected = function(torch.ones(3))
        assert torch.compile(function, backend="eager", fullgraph=True)(torch.ones(3)).equal(expected)


EXPORTS: list[Callable[[torch.Tensor], Any]] = [
    lambda view: view.numpy()[1:],
    lambda view: torch.from_numpy(view.numpy()),
    lambda view: torch.utils.dlpack.to_dlpack(view),
    lambda view: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(view)),
    torch.from_dlpack,
    np.from_dlpack,
    lambda view: view.untyped_storage(),
    lambda view: view.storage(),
]


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_memory_that_leaves_torch_is_handed_out_until_it_is_dropped(table: Table, export: Callable[[Any], Any]) -> None:
    held = export(table.weight.detach())
    gc.collect()
    assert table.handles.handed_out()
    assert table.handles.handed_out()
    table.events.clear()
    del held
    gc.collect()
    assert not table.handles.handed_out()
    assert "written" in table.events, "perhaps through it"
    again = export(table.weight.detach())
    table.handles.accept()
    assert not table.handles.handed_out()
    del again


def test_other_threads_may_fill_tuples_meanwhile(table: Table) -> None:
    """A tuple that is being filled may have one reference only."""
    errors, over = [], threading.Event()
    gc.unfreeze()  # a walk takes so long that the other thread comes in between

    def fill() -> None:
        while not over.is_set():
            try:
                tuple(each for each in range(2_000))
            except SystemError as error:
                errors.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    for _ in range(10):
        find([table.handles], [])
    over.set()
    thread.join()
    assert errors == []


def test_autograd_refuses_what_was_written_since(table: Table) -> None:
    loss = table.weight.pow(2).sum()
    with torch.no_grad():
        table.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_hooks_of_the_program_on_saved_tensors_stay_in_use(table: Table) -> None:
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: packed.append(1) or tensor.clone(), lambda it: it):
        loss = table.weight.pow(3).sum()
    assert packed
    loss.backward()
    assert table.weight.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_an_error_of_the_pending_updates_reaches_the_reader(table: Table) -> None:
    def broken() -> None:
        raise ConnectionError("a peer is gone")

    handles = Handles([table.own], [table.own], broken, lambda: None)
    table.close()
    find([handles], [])
    with pytest.raises(ConnectionError, match="a peer is gone"):
        table.weight.sum()
    handles.close()


def test_everything_is_put_back(table: Table) -> None:
    view = table.weight.data
    table.close()
    assert [type(each) for each in (table.weight, view, table.kept["shard"][0])] == [
        nn.Parameter,
        torch.Tensor,
        torch.Tensor,
    ]
    assert table.weight.sum() == view.sum() == table.own[:4].sum()
    assert table.events == ["update"], "when `view` was made"


def test_frozen_objects_are_found_by_what_holds_them() -> None:
    other = Table()
    other.close()
    other.events.clear()
    gc.freeze()
    try:
        handles = Handles([other.own], [other.own], other.update, lambda: None)
        find([handles], [other])
        assert other.kept["shard"][0][0] == 1
        handles.close()
    finally:
        gc.unfreeze()
