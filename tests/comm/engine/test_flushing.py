"""Whoever reads tables or optimizer state gets them with all updates done; afterwards everything is as before."""

import copy
import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fscomm.tables.state_hooks import FlushedState, install


class Recorded:
    """A module and an optimizer whose pending update is done by `flush`; `events` says what was called."""

    def __init__(self) -> None:
        self.module = nn.Linear(1, 1, bias=False)
        self.weight = self.module.weight.detach()
        self.state: dict[str, torch.Tensor] = {"w": torch.zeros(1)}
        self.optimizer = SimpleNamespace(state=self.state)
        self.events: list[str] = []
        self.weight.fill_(0)

    def flush(self) -> None:
        self.events.append("flush")
        self.weight.fill_(1)
        self.state["w"].fill_(1)

    def loaded(self) -> None:
        self.events.append("loaded")

    def install(self) -> list[Callable[[], None]]:
        return install(self.module, [self.optimizer], self.flush, self.loaded)


def saved(state: Any) -> Any:
    """As it comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def test_state_of_the_module_and_of_what_holds_it(recorded: Recorded) -> None:
    recorded.install()
    assert recorded.events == []
    model = nn.Sequential(nn.Sequential(recorded.module), nn.Linear(1, 1))
    assert model.state_dict()["0.0.weight"].item() == 1
    assert recorded.events == ["flush"]


def test_loading_waits_for_pending_updates_which_would_change_what_was_loaded(recorded: Recorded) -> None:
    recorded.install()
    model = nn.Sequential(recorded.module)
    model.load_state_dict({"0.weight": torch.full((1, 1), 5.0)})
    assert recorded.events == ["flush", "loaded"]
    assert recorded.weight.item() == 5


@pytest.mark.parametrize(
    "read",
    [
        lambda state: state["w"],
        lambda state: state.get("w"),
        lambda state: dict(state.items())["w"],
        lambda state: next(iter(state.values())),
        lambda state: state[next(iter(state))],
        lambda state: dict(state)["w"],
        lambda state: {**state}["w"],
        lambda state: next(value.clone() for value in state.values()),
    ],
    ids=["item", "get", "items", "values", "iteration", "dict", "unpacked", "copied"],
)
def test_state_of_the_optimizer(recorded: Recorded, read: Callable[[Any], torch.Tensor]) -> None:
    recorded.install()
    assert read(recorded.optimizer.state).item() == 1
    assert "flush" in recorded.events


def test_a_state_stays_a_dictionary(recorded: Recorded) -> None:
    recorded.install()
    state = recorded.optimizer.state
    assert isinstance(state, dict)
    assert (len(state), "w" in state, state.get("v", 3)) == (1, True, 3)
    state["v"] = 4
    assert state["v"] == 4
    with pytest.raises(KeyError):
        state["u"]


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, saved], ids=["deepcopy", "copy", "torch.save"])
def test_copied_and_saved_as_an_ordinary_dictionary(recorded: Recorded, copied: Callable[[Any], Any]) -> None:
    """Which is complete, and needs neither the block nor fscomm any more."""
    recorded.install()
    state = copied(recorded.optimizer.state)
    assert type(state) is dict
    assert list(state) == ["w"]
    assert state["w"].item() == 1
    assert "flush" in recorded.events
    assert isinstance(recorded.optimizer.state, FlushedState)


def test_the_state_of_a_torch_optimizer() -> None:
    """Which indexes it by parameter, in its own state_dict too."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adagrad([weight])
    accumulated = optimizer.state[weight]["sum"]

    def flush() -> None:
        accumulated.fill_(7)

    undo = install(nn.Linear(1, 1), [optimizer], flush, lambda: None)
    assert isinstance(optimizer.state, FlushedState)
    assert optimizer.state_dict()["state"][0]["sum"].tolist() == [7, 7]
    for each in undo:
        each()
    assert optimizer.state[weight]["sum"] is accumulated


def test_everything_is_put_back(recorded: Recorded) -> None:
    undo = recorded.install()
    recorded.optimizer.state["mine"] = torch.ones(1)
    for each in undo:
        each()
    assert recorded.optimizer.state is recorded.state
    assert set(recorded.state) == {"w", "mine"}, "what the user puts there stays"
    assert recorded.optimizer.state["w"].item() == 0
    assert recorded.module.state_dict()["weight"].item() == 0
    recorded.module.load_state_dict({"weight": torch.full((1, 1), 5.0)})
    assert recorded.events == []


def test_an_error_of_the_pending_updates_reaches_the_reader(recorded: Recorded) -> None:
    def broken() -> None:
        raise ConnectionError("a peer is gone")

    install(recorded.module, [recorded.optimizer], broken, recorded.loaded)
    for read in (
        recorded.module.state_dict,
        lambda: recorded.optimizer.state["w"],
        lambda: recorded.module.load_state_dict({"weight": torch.ones(1, 1)}),
    ):
        with pytest.raises(ConnectionError, match="a peer is gone"):
            read()
    assert recorded.events == []
