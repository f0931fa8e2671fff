"""Finding a module's features in a batch of any structure, and knowing them again."""

import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from fscomm.loop.kjt_paths import Snapshot, find, read, same, walk

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


def kjt(first: int = 1, *, weights: torch.Tensor | None = None) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=["a", "b"],
        values=torch.tensor([first, 2, 3]),
        lengths=torch.tensor([1, 0, 2, 0]),
        stride=2,
        weights=weights,
    )


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
        pytest.param(lambda k: {("u", 1): k}, "batch[('u', 1)]", id="dict-with-tuple-key"),
        pytest.param(lambda k: (torch.ones(2), k), "batch[1]", id="tuple"),
        pytest.param(lambda k: [Plain(None, {"x": (0, k)})], "batch[0].features['x'][1]", id="nested"),
        pytest.param(lambda k: Pair(1.0, k), "batch.sparse", id="namedtuple"),
        pytest.param(lambda k: SimpleNamespace(x=SimpleNamespace(y=k)), "batch.x.y", id="instances"),
        pytest.param(lambda k: Private(k), "batch._Private__hidden", id="private-slot"),
        pytest.param(lambda k: Lazy(k), "batch._value", id="property"),
        pytest.param(lambda k: OrderedDict(x=k), "batch['x']", id="ordered-dict"),
        pytest.param(lambda k: UserDict(x=k), "batch['x']", id="mapping"),
        pytest.param(lambda k: {"m": list(range(50_000)), "x": {"y": {"z": k}}}, "batch['x']['y']['z']", id="wide"),
        pytest.param(lambda k: {"m": ["text"] * 50_000, "x": [[[[[k]]]]]}, "batch['x'][0][0][0][0][0]", id="deep"),
    ],
)
def test_every_structure(put, path):
    features = kjt()
    batch = put(features)
    found = find(batch, features)
    assert str(found) == path
    assert read(batch, found) is features
    assert {k for _, k in walk(batch)} == {features}
    other = kjt(7)
    assert read(put(other), found) is other
    assert find(put(other), features) is None


def test_nothing_to_find():
    jagged = JaggedTensor(values=torch.tensor([1]), lengths=torch.tensor([1]))
    keyed = KeyedTensor(keys=["a"], length_per_key=[1], values=torch.ones(1, 1))
    for batch in (None, 1, "text", torch.ones(3), [], {}, [jagged, keyed], torch.nn.Linear(1, 1), KeyedJaggedTensor):
        assert list(walk(batch)) == []
        assert find(batch, kjt()) is None


def test_too_deep_and_too_wide_end():
    deep: Any = kjt()
    for _ in range(7):
        deep = [deep]
    assert find(deep, deep[0][0][0][0][0][0][0]) is None
    last = kjt()
    assert find([[] for _ in range(20_000)] + [last], last) is None


def test_cycles_end():
    batch: dict[str, Any] = {"x": kjt()}
    batch["self"] = batch
    batch["list"] = [batch, [batch]]
    assert [str(path) for path, _ in walk(batch)] == ["batch['x']"]
    thing = SimpleNamespace(x=kjt())
    thing.back = thing
    assert [str(path) for path, _ in walk(thing)] == ["batch.x"]


def test_a_kjt_in_two_places_is_found_in_both():
    features = kjt()
    assert [str(path) for path, _ in walk({"a": features, "b": [features]})] == ["batch['a']", "batch['b'][0]"]


def test_nearest_first_and_not_inside_a_kjt():
    near, far = kjt(1), kjt(2)
    assert [k for _, k in walk({"a": [[far]], "b": near})] == [near, far]


def test_same_object_before_same_tensors_before_equal_contents():
    features = kjt()
    equal = copied(features)
    shared = KeyedJaggedTensor(
        keys=features.keys(), values=features.values(), lengths=features.lengths(), stride=features.stride()
    )
    assert str(find([equal, shared, features], features)) == "batch[2]"
    assert str(find([equal, shared], features)) == "batch[1]"
    assert str(find([kjt(5), equal], features)) == "batch[1]"


def test_features_built_anew_are_found_by_contents():
    features = KeyedJaggedTensor(keys=["a"], values=torch.tensor([4, 5]), offsets=torch.tensor([0, 0, 2]))
    anew = KeyedJaggedTensor(keys=["a"], values=torch.tensor([4, 5]), lengths=torch.tensor([0, 2]))
    assert str(find({"x": features}, anew)) == "batch['x']"


WEIGHTS = torch.tensor([0.5, 1.0, 1.5])
DIFFERENT = {
    "values": lambda: kjt(9),
    "weights": lambda: kjt(weights=WEIGHTS),
    "lengths": lambda: KeyedJaggedTensor(["a", "b"], kjt().values(), lengths=torch.tensor([0, 1, 2, 0]), stride=2),
    "keys": lambda: KeyedJaggedTensor(["a", "c"], kjt().values(), lengths=kjt().lengths(), stride=2),
    "order of keys": lambda: KeyedJaggedTensor(["b", "a"], kjt().values(), lengths=kjt().lengths(), stride=2),
    "stride": lambda: KeyedJaggedTensor(["a"], kjt().values(), lengths=kjt().lengths(), stride=4),
    "type of values": lambda: KeyedJaggedTensor(["a", "b"], kjt().values().int(), lengths=kjt().lengths(), stride=2),
    "strides per key": lambda: KeyedJaggedTensor(
        ["a", "b"], kjt().values(), lengths=kjt().lengths(), stride_per_key_per_rank=[[1], [3]]
    ),
    "number of values": lambda: KeyedJaggedTensor(
        ["a", "b"], torch.tensor([1, 2]), lengths=torch.tensor([1, 0, 1, 0]), stride=2
    ),
    "device": lambda: kjt().to(torch.device("meta")),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_one_difference_is_enough(what):
    ours, other = kjt(), DIFFERENT[what]()
    assert not same(ours, other)
    assert not same(other, ours)
    assert find([other], ours) is None
    assert not Snapshot(ours).matches(other)
    assert not Snapshot(other).matches(ours)


def test_weights_are_compared():
    ours = kjt(weights=WEIGHTS.clone())
    assert same(ours, kjt(weights=WEIGHTS.clone()))
    assert not same(ours, kjt(weights=WEIGHTS + 1))
    assert not Snapshot(ours).matches(kjt(weights=WEIGHTS + 1))


@given(data=st.data(), stride=st.integers(0, 4), keys=st.lists(st.sampled_from("abcd"), unique=True, max_size=3))
def test_equal_contents_are_the_same(data, stride, keys):
    count = stride * len(keys)
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), dtype=torch.int64)
    values = torch.arange(int(lengths.sum()))
    ours = KeyedJaggedTensor(keys=keys, values=values, lengths=lengths, stride=stride)
    assert same(ours, copied(ours))
    assert Snapshot(ours).matches(copied(ours))
    if len(values):
        changed = copied(ours)
        changed.values()[data.draw(st.integers(0, len(values) - 1))] = -1
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
    path = find({"x": Plain(None, (0, features))}, features)
    with pytest.raises(ValueError, match=message):
        read(batch, path)


def test_a_snapshot_knows_its_features_again():
    features = kjt(weights=WEIGHTS.clone())
    snapshot = Snapshot(features)
    assert snapshot.matches(features)
    assert snapshot.matches(copied(features))
    assert snapshot.matches(features)


@pytest.mark.parametrize("part", ["values", "lengths", "weights"])
def test_a_snapshot_notices_what_is_written_in_place(part):
    features = kjt(weights=WEIGHTS.clone())
    before = copied(features)
    snapshot = Snapshot(features)
    getattr(features, part)().add_(1)
    assert not snapshot.matches(features)
    assert not snapshot.matches(before), "what was announced no longer exists to compare with"


def test_a_snapshot_notices_a_view_written_in_place():
    features = kjt()
    snapshot = Snapshot(features)
    features.values()[1:].fill_(0)
    assert not snapshot.matches(features)


def test_a_snapshot_notices_replaced_tensors():
    features = kjt()
    snapshot = Snapshot(features)
    features._values = torch.tensor([9, 9, 9])
    assert not snapshot.matches(features)


def test_inference_tensors():
    with torch.inference_mode():
        features = kjt()
    assert Snapshot(features).matches(features)
    assert str(find([features], features)) == "batch[0]"
