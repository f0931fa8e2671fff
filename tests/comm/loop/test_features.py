"""Finding a module's features in a batch of any structure, knowing them again, and reading them from later batches."""

import dataclasses
from collections import UserDict, namedtuple
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import LAYOUTS, Layout
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from fscomm.loop.feature_finder import LOOKS, TRIES, FeatureFinder
from fscomm.loop.kjt_paths import Snapshot, find, same, walk
from fscomm.recipes import search as recipes
from fscomm.tables.torchrec.features import make_features

Pair = namedtuple("Pair", ["label", "sparse"])


@dataclasses.dataclass
class Plain:
    dense: Any
    features: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    features: Any
    more: Any = dataclasses.field(init=False, repr=False, compare=False)


class Private:
    __slots__ = ("__hidden", "unset")

    def __init__(self, value):
        self.__hidden = value

    def __getattr__(self, name):
        raise AssertionError(f"{name} was asked for")


class Lazy:
    """Properties that must not run."""

    def __init__(self, value):
        self._value = value

    @property
    def expensive(self):
        raise AssertionError("a property ran")


def of(keys: str = "ab", values: Any = (1, 2, 3), lengths: Any = (1, 0, 2, 0), **more: Any) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(list(keys), torch.tensor(values), lengths=torch.tensor(lengths), **more)


def kjt(first: int = 1, *, weights: torch.Tensor | None = None) -> KeyedJaggedTensor:
    return of(values=(first, 2, 3), weights=weights)


def copied(of: KeyedJaggedTensor) -> KeyedJaggedTensor:
    weights = of.weights_or_none()
    return KeyedJaggedTensor(
        keys=list(of.keys()),
        values=of.values().clone(),
        lengths=of.lengths().clone(),
        stride=of.stride(),
        weights=None if weights is None else weights.clone(),
    )


@pytest.mark.parametrize(
    ("put", "path"),
    [
        pytest.param(lambda k: k, "batch", id="itself"),
        pytest.param(lambda k: Plain(torch.ones(2), k), "batch.features", id="dataclass"),
        pytest.param(lambda k: Slotted(k), "batch.features", id="slots-with-an-unset-field"),
        pytest.param(lambda k: {"dense": 1, "kjt": k}, "batch['kjt']", id="dict"),
        pytest.param(lambda k: (torch.ones(2), k), "batch[1]", id="tuple"),
        pytest.param(lambda k: [Plain(None, {"x": (0, k)})], "batch[0].features['x'][1]", id="nested"),
        pytest.param(lambda k: Pair(1.0, k), "batch.sparse", id="namedtuple"),
        pytest.param(lambda k: SimpleNamespace(x=SimpleNamespace(y=k)), "batch.x.y", id="instances"),
        pytest.param(lambda k: Private(k), "batch._Private__hidden", id="private-slot"),
        pytest.param(lambda k: Lazy(k), "batch._value", id="property"),
        pytest.param(lambda k: UserDict(x=k), "batch['x']", id="mapping"),
        pytest.param(lambda k: {"m": list(range(50_000)), "x": {"y": {"z": k}}}, "batch['x']['y']['z']", id="wide"),
        pytest.param(lambda k: {"m": ["text"] * 50_000, "x": [[[[[k]]]]]}, "batch['x'][0][0][0][0][0]", id="deep"),
    ],
)
def test_every_structure(put, path):
    features = kjt()
    batch = put(features)
    found, *_ = find(batch, features)
    assert str(found) == path
    assert found.read(batch) is features
    assert {k for _, k in walk(batch)} == {features}
    other = kjt(7)
    assert found.read(put(other)) is other
    assert find(put(other), features) == []


def test_nothing_to_find():
    jagged = JaggedTensor(values=torch.tensor([1]), lengths=torch.tensor([1]))
    keyed = KeyedTensor(keys=["a"], length_per_key=[1], values=torch.ones(1, 1))
    for batch in (None, 1, "text", torch.ones(3), [], {}, [jagged, keyed], torch.nn.Linear(1, 1), KeyedJaggedTensor):
        assert list(walk(batch)) == []
        assert find(batch, kjt()) == []


def test_too_deep_and_too_wide_end():
    deep: Any = kjt()
    for _ in range(7):
        deep = [deep]
    assert find(deep, deep[0][0][0][0][0][0][0]) == []
    last = kjt()
    assert find([[] for _ in range(20_000)] + [last], last) == []


def test_cycles_end_and_the_nearest_comes_first():
    near, far = kjt(1), kjt(2)
    batch: dict[str, Any] = {"a": [[far]], "x": near, "again": [near]}
    batch["list"] = [batch, [batch]]
    thing = SimpleNamespace(inside=batch)
    thing.back = batch["self"] = thing
    assert [str(path) for path, _ in walk(batch)] == ["batch['x']", "batch['again'][0]", "batch['a'][0][0]"]
    assert [k for _, k in walk(thing)] == [near, near, far]


def test_same_object_before_same_tensors_before_equal_contents():
    features = kjt()
    equal = copied(features)
    shared = KeyedJaggedTensor(
        keys=features.keys(), values=features.values(), lengths=features.lengths(), stride=features.stride()
    )
    assert str(find([equal, shared, features], features)[0]) == "batch[2]"
    assert str(find([equal, shared], features)[0]) == "batch[1]"
    assert str(find([kjt(5), equal], features)[0]) == "batch[1]"


WEIGHTS = torch.tensor([0.5, 1.0, 1.5])
DIFFERENT = {  # what differs -> the part that is named, and another KJT than `kjt()`
    "values": ("values", lambda: of(values=(9, 2, 3))),
    "weights": ("weights", lambda: of(weights=WEIGHTS)),
    "lengths": ("lengths", lambda: of(lengths=(0, 1, 2, 0))),
    "keys": ("keys", lambda: of("ac")),
    "order of keys": ("keys", lambda: of("ba")),
    "stride": ("keys", lambda: of("a", stride=4)),
    "type of values": ("values", lambda: KeyedJaggedTensor(["a", "b"], kjt().values().int(), lengths=kjt().lengths())),
    "strides per key": ("stride", lambda: of(stride_per_key_per_rank=[[1], [3]])),
    "number of values": ("values", lambda: of(values=(1, 2), lengths=(1, 0, 1, 0))),
    "device": ("values", lambda: kjt().to(torch.device("meta"))),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_one_difference_is_enough_and_named(what):
    ours, (named, make) = kjt(), DIFFERENT[what]
    other = make()
    assert not same(ours, other)
    assert not same(other, ours)
    assert find([other], ours) == []
    assert not Snapshot(other).matches(ours)
    assert Snapshot(ours).difference(other) == named


@given(data=st.data(), stride=st.integers(0, 4), keys=st.lists(st.sampled_from("abcd"), unique=True, max_size=3))
def test_equal_contents_are_the_same(data, stride, keys):
    """Until one value, or one weight, is another."""
    count = stride * len(keys)
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), dtype=torch.int64)
    values = torch.arange(int(lengths.sum()))
    weights = values.float() if data.draw(st.booleans()) else None
    ours = KeyedJaggedTensor(keys=keys, values=values, lengths=lengths, stride=stride, weights=weights)
    assert same(ours, copied(ours))
    assert Snapshot(ours).matches(copied(ours))
    if len(values):
        changed = copied(ours)
        part = changed.values() if weights is None or data.draw(st.booleans()) else changed.weights()
        part[data.draw(st.integers(0, len(values) - 1))] = -1
        assert not same(ours, changed)
        assert not Snapshot(ours).matches(changed)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"y": 1}, r"found at batch\['x'\]\.features\[1\] in the first batch.* batch, a dict, has no \['x'\]"),
        ({"x": Lazy(None)}, r"batch\['x'\], a Lazy, has no \.features"),
        ({"x": Plain(None, (1,))}, r"batch\['x'\]\.features, a tuple, has no \[1\]"),
        ({"x": Plain(None, None)}, r"batch\['x'\]\.features, a NoneType, has no \[1\]"),
        ({"x": Plain(None, (1, 2))}, "a int lies there"),
        (None, r"batch, a NoneType, has no \['x'\]"),
    ],
)
def test_a_path_that_is_gone(batch, message):
    features = kjt()
    (path,) = find({"x": Plain(None, (0, features))}, features)
    with pytest.raises(ValueError, match=message):
        path.read(batch)


@pytest.mark.parametrize("part", ["values", "lengths", "weights"])
def test_a_snapshot_notices_what_is_written_in_place(part):
    features = kjt(weights=WEIGHTS.clone())
    before = copied(features)
    snapshot = Snapshot(features)
    for _ in range(2):
        assert snapshot.matches(features)
        assert snapshot.matches(before)
    getattr(features, part)()[1:].add_(1)  # a view of it
    assert snapshot.difference(features) == part
    assert not snapshot.matches(before), "what was announced no longer exists to compare with"


def test_inference_tensors():
    with torch.inference_mode():
        features = kjt()
    assert Snapshot(features).matches(features)
    assert str(find([features], features)[0]) == "batch[0]"


# Which part of a batch belongs to which module: learned once, read from every later batch, given up with a reason.


def weighted(features: Any) -> str | None:
    return "it has weights" if features.weights_or_none() is not None else None


def finder(
    *names: str, problem: Callable[[Any], str | None] = weighted, **given: Callable[[Any], Any]
) -> FeatureFinder:
    search = partial(recipes.recipe, make=make_features)
    return FeatureFinder(names or ("user", "item"), given, problem=problem, make=make_features, search=search)


def test_learned_once_by_module_and_read_from_later_batches() -> None:
    found = finder()
    batch = {"x": kjt(1), "y": [kjt(5)]}
    assert found.read(batch) == ([None, None], [None, None])
    assert found.learn(1, batch, batch["x"]) is None
    assert found.learn(1, batch, batch["y"][0]) is None
    assert found.read(batch) == ([None, batch["x"]], [None, None])
    assert found.learn(0, batch, kjt(5)) is None  # another object with the same contents
    later = {"x": kjt(7), "y": [kjt(8)]}
    assert found.read(later) == ([later["y"][0], later["x"]], [None, None])
    assert found.explicit == frozenset()


def test_told_by_the_user() -> None:
    """Then there is nothing to learn. An error of the user's function is the user's."""
    found = finder(item=lambda batch: batch["z"])
    assert found.explicit == frozenset([1])
    batch = {"x": kjt(1), "z": kjt(2)}
    assert found.read(batch) == ([None, batch["z"]], [None, None])
    assert found.learn(1, batch, kjt(9)) is None
    assert found.read(batch) == ([None, batch["z"]], [None, None])
    with pytest.raises(KeyError, match="z"):
        found.read({})
    with pytest.raises(ValueError, match="invalid literal"):
        finder(item=int).read("no number")
    for names, readers, modules in (["a"], {"c": kjt, "b": kjt}, "a"), ([], {"b": kjt, "c": kjt}, "none"):
        with pytest.raises(ValueError, match=f"features= names b, c, but the modules served are {modules}"):
            FeatureFinder(names, readers, problem=weighted, make=make_features)


def test_not_in_the_batch() -> None:
    """The reason gives the line to add; after a few batches nothing more is tried."""
    found, late = finder("user"), finder("user")
    batch = {"x": kjt(1), "y": kjt(5)}
    for _ in range(TRIES):
        why = found.learn(0, batch, kjt(3))
        assert why is not None
        assert "were not found in the batch (dict)" in why
        assert "features={'user': lambda batch: ...}" in why
        assert "with keys a" in why
    assert found.learn(0, batch, batch["x"]) == why
    assert found.read(batch) == ([None], [why])
    assert late.learn(0, batch, kjt(3)) is not None
    assert late.learn(0, batch, batch["x"]) is None, "found in a later batch"


def built(keys: list[str], *parts: tuple[list[int], list[int]]) -> KeyedJaggedTensor:
    """A KJT from (values, lengths) for each key."""
    return KeyedJaggedTensor(
        keys=keys,
        values=torch.tensor([value for values, _ in parts for value in values]),
        lengths=torch.tensor([length for _, lengths in parts for length in lengths]),
    )


def of_two_kjts(first: int) -> tuple[Any, KeyedJaggedTensor]:
    history = built(["h", "unused"], ([first, 2, 3], [1, 2]), ([9], [0, 1]))
    batch = SimpleNamespace(history=history, ads=[built(["x"], ([first + 5, 6], [1, 1]))])
    return batch, built(["x", "h"], ([first + 5, 6], [1, 1]), ([first, 2, 3], [1, 2]))


def of_rows(first: int) -> tuple[Any, KeyedJaggedTensor]:
    """A batch that is a list, as of a torch DataLoader; the model makes an int32 KJT of it."""
    ids = torch.arange(first, first + 6)
    lengths = torch.full((3,), 2, dtype=torch.int32)
    return [torch.rand(3, 2), ids.view(3, 2), ids + 100], KeyedJaggedTensor(["item"], ids.int(), lengths=lengths)


def of_two_that_look_alike(first: int) -> tuple[Any, KeyedJaggedTensor]:
    """They are told apart by the second batch."""
    batch = {"one": built(["p"], ([1], [1])), "two": built(["q"], ([first], [1]))}
    return batch, built(["item"], ([first], [1]))


def of_weights(first: int) -> tuple[Any, KeyedJaggedTensor]:
    """They travel with their key."""
    batch = {"x": kjt(first, weights=WEIGHTS), "y": kjt(first, weights=WEIGHTS * 2)}
    return batch, of("c", (first,), (1, 0), weights=WEIGHTS[:1] * 2)


RECIPES = [of_two_kjts, of_rows, of_two_that_look_alike, of_weights]


@pytest.mark.parametrize("pair", RECIPES)
def test_a_kjt_that_the_model_builds_is_built_of_the_same_parts(pair: Callable[[int], Any]) -> None:
    found = finder("user", problem=lambda _: None)
    assert found.learn(0, *pair(1)) is None
    if pair is of_two_that_look_alike:
        assert found.correct(0, *pair(6))
    for first in (30, 50):
        batch, wanted = pair(first)
        (read,), (why,) = found.read(batch)
        assert why is None
        assert same(read, wanted)


IDS = {"ids": torch.tensor([[1, 2], [3, 4]]), "more": built(["b"], ([8, 9], [1, 1]))}
OF_IDS = built(["a", "b"], ([1, 2, 3, 4], [2, 2]), ([8, 9], [1, 1]))
SECOND = {"x": kjt(1), "y": kjt(5)}, built(["b"], ([2, 3], [2, 0]))
LISTS = {"values": torch.tensor([5, 6, 7]), "lengths": torch.tensor([2, 0, 1])}, built(["a"], ([5, 6, 7], [2, 0, 1]))
VARYING = KeyedJaggedTensor(
    ["a", "b"], torch.tensor([1, 2, 3]), stride_per_key_per_rank=[[1], [2]], lengths=torch.ones(3).int()
)


@pytest.mark.parametrize(
    ("learned", "other", "why"),
    [
        ((IDS, OF_IDS), {"ids": torch.tensor([[1, 2]])}, "they are of [1, 2] samples"),
        (SECOND, {"x": VARYING}, "different batch sizes"),  # it cannot be taken apart by key
        (LISTS, {"lengths": torch.tensor([2, 0, 2])}, "do not go together"),
        (LISTS, {"lengths": torch.tensor([4, -2, 1])}, "do not go together"),
        (LISTS, {"lengths": torch.tensor([[2.0, 0, 1]])}, "a Tensor lies there"),
    ],
)
def test_a_batch_whose_tensors_do_not_fit_one_another_is_not_read(learned: Any, other: Any, why: str) -> None:
    """Where TorchRec would fail on the way to the owners: this batch runs plainly, whatever the model makes of it."""
    found, (batch, features) = finder("user"), learned
    assert found.learn(0, batch, features) is None
    (read,), (said,) = found.read(batch | other)
    assert read is None
    assert why in str(said)


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


# Ids as plain tensors, in any layout.


def drawn(layout: Layout, seed: int, *, keys: list[str], samples: int, most: int = 4) -> KeyedJaggedTensor:
    """Features whose ids differ from key to key."""
    random, count = torch.Generator().manual_seed(seed), len(keys) * samples
    lengths = torch.ones(count) if layout.one_each else torch.randint(0, most + 1, (count,), generator=random)
    values = torch.randint(int(layout.no_zero), 1000, (int(lengths.sum()),), generator=random)
    return KeyedJaggedTensor(keys, values, lengths=lengths.long(), stride=samples)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("several", [False, True], ids=["one key", "keys"])
def test_every_layout_of_plain_tensors(name: str, several: bool) -> None:
    """Learned of one batch, with other tensors of integers in it, and read from batches of other sizes."""
    layout, keys = LAYOUTS[name], ["a", "b", "c"][: 3 if several else 1]
    found = finder("user", problem=lambda _: None)
    for seed, samples in enumerate((5, 6, 1, 4, 0 if "jagged" not in name else 3)):
        wanted = drawn(layout, seed, keys=keys, samples=samples)
        batch = {"label": torch.arange(samples) % 2, "ids": layout.take(wanted), "rank": torch.zeros(samples)}
        if seed == 0:
            assert found.learn(0, batch, layout.build(keys, layout.take(wanted))) is None
            assert same(layout.build(keys, layout.take(wanted)), wanted)
        (read,), (why,) = found.read(batch)
        assert why is None
        assert same(read, wanted)


@given(data=st.data())
def test_a_layout_is_found_whatever_the_numbers(data: st.DataObject) -> None:
    """What is read of the batch that it was learned of is what the module got, however few ids tell keys apart."""
    layout = LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))]
    samples, keys = data.draw(st.integers(1, 4)), ["a", "b", "c"][: data.draw(st.integers(1, 3))]
    count = len(keys) * samples
    lengths = [1] * count if layout.one_each else data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    ids = st.integers(int(layout.no_zero), 2)
    values = data.draw(st.lists(ids, min_size=sum(lengths), max_size=sum(lengths)))
    wanted = KeyedJaggedTensor(
        keys, torch.tensor(values, dtype=torch.int64), lengths=torch.tensor(lengths), stride=samples
    )
    found, batch = finder("user", problem=lambda _: None), layout.take(wanted)
    assert found.learn(0, batch, wanted) is None
    assert same(found.read(batch)[0][0], wanted)


def test_types_of_integers() -> None:
    """A list may be longer than its type of lengths, or their sum, can say."""
    values, lengths = torch.arange(600).view(2, 300), torch.tensor([200, 10], dtype=torch.uint8)
    for rows in (values, values.flip(1)):
        wanted = built(["a"], (torch.cat([rows[0, -200:], rows[1, -10:]]).tolist(), [200, 10]))
        batch = {"rows": values, "lengths": lengths, "other": rows.int()}
        found = finder("user")
        assert found.learn(0, batch, wanted) is None
        assert same(found.read(batch)[0][0], wanted)
    offsets = torch.tensor([0, 100, 50, 200], dtype=torch.uint8)  # not in order
    assert finder("user").learn(0, {"v": torch.arange(200), "o": offsets}, built(["a"], ([1], [1]))) is not None


@pytest.mark.parametrize("equal", [False, True])
def test_the_search_takes_time_with_the_size_of_the_batch(equal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all columns hold the same. Counted are comparisons of whole lists."""
    features, samples = 300, 8
    ids = torch.zeros(samples, features) if equal else torch.arange(samples * features).view(samples, features)
    keys = [f"k{f}" for f in range(features)]
    compared = create_autospec(recipes.Jagged.equals, side_effect=recipes.Jagged.equals)
    monkeypatch.setattr(recipes.Jagged, "equals", compared)
    wanted = KeyedJaggedTensor(keys, ids.long().t().flatten(), lengths=torch.ones(samples * features).long())
    recipe, missing = recipes.recipe({"ids": ids.long()}, wanted, make=make_features)
    assert missing == []
    assert 0 < compared.call_count <= 40 * features
    assert [origin.place for origin, *_ in recipe.origins] == list(range(features)), "each column is that of its place"


# What one batch taught, and another one contradicts.


def test_two_that_hold_the_same_in_the_first_batch() -> None:
    found = finder("user")
    nothing, first, second = built(["a"], ([], [0, 0])), {}, {}
    first = {"x": nothing, "y": copied(nothing), "z": [copied(nothing)]}
    assert found.learn(0, first, copied(nothing)) is None
    second = {"x": kjt(1), "y": kjt(2), "z": [kjt(3)]}
    assert found.read(second)[0] == [second["x"]]
    assert found.where(0) == "batch['x']"
    assert found.correct(0, second, copied(second["z"][0]))
    assert found.read(second)[0] == [second["z"][0]]
    assert found.where(0) == "batch['z'][0]"
    third = {"x": kjt(7), "y": kjt(8), "z": [kjt(9)]}
    assert not found.correct(0, third, kjt(5)), "in no part of the batch"
    assert found.read(third)[0] == [third["z"][0]], "and nothing is forgotten"


def test_keys_without_ids_in_the_first_batch_are_told_apart_later() -> None:
    """Those that were known stay known, though they have no ids in the batch that tells of the others."""
    found, keys = finder("user", problem=lambda _: None), ["a", "b"]

    def batch(a: list[int], b: list[int]) -> tuple[Any, KeyedJaggedTensor]:
        named = [*((f"nothing {i}", []) for i in range(40)), ("one", b), ("two", a), ("three", [4])]
        lists = {name: torch.tensor(ids, dtype=torch.int64) for name, ids in named}
        lengths = {f"{name} lengths": torch.tensor([len(ids)]) for name, ids in lists.items()}
        return lists | lengths, built(keys, (a, [len(a)]), (b, [len(b)]))

    assert found.learn(0, *batch([5, 6], [])) is None
    assert found.correct(0, *batch([], [7, 8]))
    for a, b in (([1, 2], [3]), ([9], []), ([], [9, 9])):
        given, wanted = batch(a, b)
        assert same(found.read(given)[0][0], wanted)


def test_batches_of_several_structures() -> None:
    """Each is learned when it comes first; both are known then."""
    found = finder("user")
    assert found.learn(0, {"x": kjt(1)}, kjt(1)) is None
    other = SimpleNamespace(y=[kjt(2)])
    (read,), (why,) = found.read(other)
    assert (read, "has no ['x']" in str(why)) == (None, True)
    assert found.correct(0, other, other.y[0])
    for batch, wanted in ((other, other.y[0]), (later := {"x": kjt(3)}, later["x"])):
        assert found.read(batch) == ([wanted], [None])


def test_it_is_looked_for_again_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    found, search = finder("user"), Mock(wraps=recipes.origins_of)
    monkeypatch.setattr(recipes, "origins_of", search)
    batch = {"x": kjt(1)}
    assert found.learn(0, batch, kjt(1)) is None
    assert not found.correct(0, batch, built(["a", "b"], ([], [0, 0]), ([], [0, 0])))
    assert search.call_count == 0, "of nothing nothing is learned"
    for n in range(3 * LOOKS):
        assert not found.correct(0, batch, kjt(50 + n))
    assert search.call_count == LOOKS
    assert found.read(batch)[0] == [batch["x"]]
