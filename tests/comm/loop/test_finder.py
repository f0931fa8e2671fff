"""Which part of a batch belongs to which module: learned once, read from every later batch, given up with a reason."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from fscomm.loop.feature_finder import TRIES, FeatureFinder
from fscomm.loop.kjt_paths import same
from fscomm.tables.torchrec.binding import make_features


def kjt(first: int, *, weights: torch.Tensor | None = None) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=["a"], values=torch.tensor([first, first + 1]), lengths=torch.tensor([1, 1]), weights=weights
    )


def weighted(features: Any) -> str | None:
    return "it has weights" if features.weights_or_none() is not None else None


def finder(
    *names: str, problem: Callable[[Any], str | None] = weighted, **given: Callable[[Any], Any]
) -> FeatureFinder:
    return FeatureFinder(names or ("user", "item"), given, problem=problem, make=make_features)


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
        FeatureFinder(["a"], {"c": kjt, "a": kjt, "b": kjt}, problem=weighted, make=make_features)
    with pytest.raises(ValueError, match="the modules served are none"):
        FeatureFinder([], {"c": kjt}, problem=weighted, make=make_features)


def test_not_in_the_batch() -> None:
    """The reason gives the line to add; after a few batches nothing more is tried."""
    found = finder("user")
    batch = {"x": kjt(1), "y": kjt(5)}
    for _ in range(TRIES):
        why = found.learn(0, batch, kjt(3))
        assert why is not None
        assert "were not found in the batch (dict)" in why
        assert "features={'user': lambda batch: ...}" in why
        assert "with keys a" in why
    assert found.learn(0, batch, batch["x"]) == why
    assert found.read(batch) == ([None], [why])


def test_found_in_a_later_batch() -> None:
    found = finder("user")
    assert found.learn(0, {"x": kjt(1)}, kjt(3)) is not None
    batch = {"x": kjt(4)}
    assert found.learn(0, batch, batch["x"]) is None
    assert found.read(batch) == ([batch["x"]], [None])


def built(keys: list[str], *parts: tuple[list[int], list[int]]) -> KeyedJaggedTensor:
    """A KJT from (values, lengths) for each key."""
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.tensor([value for values, _ in parts for value in values]),
        lengths=torch.tensor([length for _, lengths in parts for length in lengths]),
    )


def test_keys_of_two_kjts_are_read_from_both() -> None:
    def batch(first: int) -> SimpleNamespace:
        return SimpleNamespace(
            history=built(["h", "unused"], ([first, 2, 3], [1, 2]), ([9], [0, 1])),
            ads=[built(["x"], ([first + 5, 6], [1, 1]))],
        )

    def model_input(batch: SimpleNamespace) -> KeyedJaggedTensor:
        history, ads = batch.history.to_dict(), batch.ads[0].to_dict()
        parts = [(ads["x"].values(), ads["x"].lengths()), (history["h"].values(), history["h"].lengths())]
        return KeyedJaggedTensor(
            keys=["x", "h"],
            values=torch.cat([part[0] for part in parts]),
            lengths=torch.cat([part[1] for part in parts]),
        )

    found = finder("user")
    assert found.learn(0, batch(1), model_input(batch(1))) is None
    for later in (batch(30), batch(50)):
        (read,), (why,) = found.read(later)
        assert why is None
        assert same(read, model_input(later))


@pytest.mark.parametrize("lengths", [[2, 2, 2], [3, 0, 3]], ids=["equally long", "with lengths"])
def test_plain_tensors_become_a_kjt(lengths: list[int]) -> None:
    """A batch that is a list, as of a torch DataLoader; the model makes an int32 KJT of it."""

    def batch(first: int) -> list[Any]:
        ids = torch.arange(first, first + 6)
        of_each = torch.tensor(lengths)
        return [torch.rand(3, 2), ids.view(3, 2), ids + 100] if len(set(lengths)) == 1 else [of_each, ids, ids + 100]

    def model_input(batch: list[Any]) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            keys=["item"], values=batch[1].reshape(-1).int(), lengths=torch.tensor(lengths, dtype=torch.int32)
        )

    found = finder("user")
    assert found.learn(0, batch(1), model_input(batch(1))) is None
    (read,), (why,) = found.read(batch(40))
    assert why is None
    assert same(read, model_input(batch(40)))


def test_offsets_in_place_of_lengths() -> None:
    batch = {"ids": torch.tensor([7, 8, 9]), "offsets": torch.tensor([0, 1, 1, 3])}
    found = finder("user")
    assert found.learn(0, batch, built(["a"], ([7, 8, 9], [1, 0, 2]))) is None
    later = {"ids": torch.tensor([4, 5]), "offsets": torch.tensor([0, 0, 2, 2])}
    (read,), _ = found.read(later)
    assert same(read, built(["a"], ([4, 5], [0, 2, 0])))


def test_two_parts_that_look_alike_are_told_apart_by_a_later_batch() -> None:
    """Until then the wrong one may be read: the engine compares contents before it uses them."""

    def batch(a: int, b: int) -> dict[str, Any]:
        return {"one": built(["p"], ([a], [1])), "two": built(["q"], ([b], [1]))}

    def model_input(batch: dict[str, Any]) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(keys=["item"], values=batch["two"].values(), lengths=batch["two"].lengths())

    found = finder("user")
    for a, b in ((5, 5), (6, 7)):
        assert found.learn(0, batch(a, b), model_input(batch(a, b))) is None
    (read,), _ = found.read(batch(1, 2))
    assert same(read, model_input(batch(1, 2)))


def test_a_batch_with_other_sizes_is_not_read() -> None:
    found = finder("user")
    batch = {"ids": torch.tensor([[1, 2], [3, 4]]), "more": built(["b"], ([8, 9], [1, 1]))}
    assert found.learn(0, batch, built(["a", "b"], ([1, 2, 3, 4], [2, 2]), ([8, 9], [1, 1]))) is None
    (read,), (why,) = found.read(batch | {"ids": torch.tensor([[1, 2]])})
    assert read is None
    assert "they are of [1, 2] samples" in str(why)


def test_weights_travel_with_their_key() -> None:
    weights = torch.tensor([0.5, 2.0])
    batch = {"x": kjt(1, weights=weights), "y": kjt(1, weights=weights * 2)}
    wanted = KeyedJaggedTensor(
        keys=["b"], values=torch.tensor([1, 2]), lengths=torch.tensor([1, 1]), weights=weights * 2
    )
    found = finder("user", problem=lambda _: None)
    assert found.learn(0, batch, wanted) is None
    (read,), _ = found.read(batch)
    assert same(read, wanted)


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
