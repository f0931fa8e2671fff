"""Which part of a batch belongs to which module: learned once, read from every later batch, given up with a reason."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.loop.feature_finder import FeatureFinder


def kjt(first: int, *, weights: torch.Tensor | None = None) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=["a"], values=torch.tensor([first, first + 1]), lengths=torch.tensor([1, 1]), weights=weights
    )


def weighted(features: Any) -> str | None:
    return "it has weights" if features.weights_or_none() is not None else None


def finder(
    *names: str, problem: Callable[[Any], str | None] = weighted, **given: Callable[[Any], Any]
) -> FeatureFinder:
    return FeatureFinder(names or ("user", "item"), given, problem)


def test_nothing_is_known_before_the_first_forward() -> None:
    assert finder().read({"x": kjt(1)}) == ([None, None], [None, None])


def test_learned_by_module_and_read_from_later_batches() -> None:
    found = finder()
    batch = {"x": kjt(1), "y": [kjt(5)]}
    assert found.learn(1, batch, batch["x"]) is None
    assert found.read(batch) == ([None, batch["x"]], [None, None])
    assert found.learn(0, batch, kjt(5)) is None  # another object with the same contents
    later = {"x": kjt(7), "y": [kjt(8)]}
    assert found.read(later) == ([later["y"][0], later["x"]], [None, None])
    assert found.explicit == frozenset()


def test_learned_once() -> None:
    found = finder("user")
    batch = {"x": kjt(1), "y": kjt(5)}
    found.learn(0, batch, batch["x"])
    found.learn(0, batch, batch["y"])
    assert found.read(batch) == ([batch["x"]], [None])


def test_told_by_the_user() -> None:
    """Then there is nothing to learn."""
    found = finder(item=lambda batch: batch["z"])
    assert found.explicit == frozenset([1])
    batch = {"x": kjt(1), "z": kjt(2)}
    assert found.read(batch) == ([None, batch["z"]], [None, None])
    assert found.learn(1, batch, kjt(9)) is None
    assert found.read(batch) == ([None, batch["z"]], [None, None])


def test_names_that_are_no_module() -> None:
    with pytest.raises(ValueError, match="features= names b, c, but the modules served are a"):
        FeatureFinder(["a"], {"c": kjt, "a": kjt, "b": kjt}, weighted)
    with pytest.raises(ValueError, match="the modules served are none"):
        FeatureFinder([], {"c": kjt}, weighted)


def test_not_in_the_batch() -> None:
    """The reason names what was looked at and the way out; it stands, and nothing more is tried."""
    found = finder("user")
    batch = {"x": kjt(1), "y": kjt(5)}
    why = found.learn(0, batch, kjt(3))
    assert why is not None
    assert "(dict)" in why
    assert "they are none of batch['x'], batch['y']." in why
    assert "features={'user': function from batch to KeyedJaggedTensor}" in why
    assert found.learn(0, batch, batch["x"]) == why
    assert found.read(batch) == ([None], [why])


def test_a_batch_that_holds_no_features() -> None:
    why = finder("user").learn(0, SimpleNamespace(dense=torch.ones(2)), kjt(3))
    assert why is not None
    assert "(SimpleNamespace)" in why
    assert "it holds no KeyedJaggedTensor" in why


def test_features_that_cannot_be_prefetched_are_not_looked_for() -> None:
    found = finder("user")
    batch = {"x": kjt(1, weights=torch.ones(2))}
    assert found.learn(0, batch, batch["x"]) == "it has weights"
    assert found.read(batch) == ([None], ["it has weights"])


def test_a_batch_of_another_structure() -> None:
    """Only this batch of this module has none; the next one is read as ever."""
    found = finder()
    batch = {"x": kjt(1), "y": kjt(5)}
    for m, name in enumerate(("x", "y")):
        found.learn(m, batch, batch[name])
    later = {"y": kjt(6)}
    read, why = found.read(later)
    assert read == [None, later["y"]]
    assert "batch['x']" in str(why[0])
    assert why[1] is None
    assert found.learn(0, later, kjt(1)) is None
    assert found.read(batch) == ([batch["x"], batch["y"]], [None, None])


@pytest.mark.parametrize("told", [False, True])
def test_a_batch_whose_features_cannot_be_prefetched(told: bool) -> None:
    batch = {"x": kjt(1)}
    found = finder("user", **({"user": lambda batch: batch["x"]} if told else {}))
    found.learn(0, batch, batch["x"])
    assert found.read({"x": kjt(2, weights=torch.ones(2))}) == ([None], ["it has weights"])
    assert found.read(batch) == ([batch["x"]], [None])


def test_errors_of_the_users_function_are_the_users() -> None:
    def wrong(batch: Any) -> Any:
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        finder("user", user=wrong).read({})
