"""Which part of a batch belongs to which module: learned once, read from every later batch, given up with a reason."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.finder import Finder


def kjt(first: int, *, weights: torch.Tensor | None = None) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=["a"], values=torch.tensor([first, first + 1]), lengths=torch.tensor([1, 1]), weights=weights
    )


def weighted(features: Any) -> str | None:
    return "it has weights" if features.weights_or_none() is not None else None


def finder(*names: str, problem: Callable[[Any], str | None] = weighted, **given: Callable[[Any], Any]) -> Finder:
    return Finder(names or ("user", "item"), given, problem)


def test_nothing_is_known_before_the_first_forward() -> None:
    found = finder()
    assert found.read({"x": kjt(1)}) == [None, None]
    assert found.lost == {}


def test_learned_by_module_and_read_from_later_batches() -> None:
    found = finder()
    batch = {"x": kjt(1), "y": [kjt(5)]}
    found.learn(1, batch, batch["x"])
    assert found.read(batch) == [None, batch["x"]]
    found.learn(0, batch, kjt(5))  # another object with the same contents
    later = {"x": kjt(7), "y": [kjt(8)]}
    assert found.read(later) == [later["y"][0], later["x"]]
    assert found.lost == {}
    assert found.explicit == frozenset()


def test_learned_once() -> None:
    found = finder("user")
    batch = {"x": kjt(1), "y": kjt(5)}
    found.learn(0, batch, batch["x"])
    found.learn(0, batch, batch["y"])
    assert found.read(batch) == [batch["x"]]


def test_told_by_the_user() -> None:
    """Then there is nothing to learn."""
    found = finder(item=lambda batch: batch["z"])
    assert found.explicit == frozenset([1])
    batch = {"x": kjt(1), "z": kjt(2)}
    assert found.read(batch) == [None, batch["z"]]
    found.learn(1, batch, kjt(9))
    assert found.read(batch) == [None, batch["z"]]
    assert found.lost == {}


def test_names_that_are_no_module() -> None:
    with pytest.raises(ValueError, match="features= names b, c, but the modules served are a"):
        Finder(["a"], {"c": kjt, "a": kjt, "b": kjt}, weighted)
    with pytest.raises(ValueError, match="the modules served are none"):
        Finder([], {"c": kjt}, weighted)


def test_not_in_the_batch() -> None:
    """The reason names what was looked at and the way out; it stands, and nothing more is tried."""
    found = finder("user")
    batch = {"x": kjt(1), "y": kjt(5)}
    found.learn(0, batch, kjt(3))
    why = found.lost[0]
    assert "(dict)" in why
    assert "they are none of batch['x'], batch['y']." in why
    assert "features={'user': function from batch to KeyedJaggedTensor}" in why
    found.learn(0, batch, batch["x"])
    assert found.read(batch) == [None]
    assert found.lost == {0: why}


def test_a_batch_that_holds_no_features() -> None:
    found = finder("user")
    found.learn(0, SimpleNamespace(dense=torch.ones(2)), kjt(3))
    assert "(SimpleNamespace)" in found.lost[0]
    assert "it holds no KeyedJaggedTensor" in found.lost[0]


def test_features_that_cannot_be_prefetched_are_not_looked_for() -> None:
    found = finder("user")
    batch = {"x": kjt(1, weights=torch.ones(2))}
    found.learn(0, batch, batch["x"])
    assert found.lost == {0: "it has weights"}
    assert found.read(batch) == [None]


def test_a_batch_of_another_structure() -> None:
    """Only this module is lost."""
    found = finder()
    batch = {"x": kjt(1), "y": kjt(5)}
    for m, name in enumerate(("x", "y")):
        found.learn(m, batch, batch[name])
    later = {"y": kjt(6)}
    assert found.read(later) == [None, later["y"]]
    assert found.lost.keys() == {0}
    assert "batch['x']" in found.lost[0]


@pytest.mark.parametrize("told", [False, True])
def test_a_batch_whose_features_cannot_be_prefetched(told: bool) -> None:
    batch = {"x": kjt(1)}
    found = finder("user", **({"user": lambda batch: batch["x"]} if told else {}))
    found.learn(0, batch, batch["x"])
    assert found.read({"x": kjt(2, weights=torch.ones(2))}) == [None]
    assert found.lost == {0: "it has weights"}


def test_errors_of_the_users_function_are_the_users() -> None:
    def wrong(batch: Any) -> Any:
        raise ValueError("no such thing")

    found = finder("user", user=wrong)
    with pytest.raises(ValueError, match="no such thing"):
        found.read({})
    assert found.lost == {}
