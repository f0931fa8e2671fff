"""Taking batches apart and building them again, in one process; what cannot be split is refused by its path."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from test_rebalance import PATHS, Loader, batch_of, marks_of, same
from torchrec import KeyedJaggedTensor

from fsdata.batch.batch import StepStats
from fsdata.errors import DataError
from fsdata.tensors.entries import from_bytes
from fsdata.tensors.rebalancing import rebalance
from fsdata.tensors.tensor_tree import from_text, take_apart, to_text


def no_lengths(batch: Any, jagged: Any) -> dict[str, np.ndarray]:
    return {}


@pytest.mark.parametrize("index", [[], [3], [5, 0, 2, 4, 3, 1], [1, 1, 1]], ids=str)
def test_what_was_taken_apart_can_be_built_from_any_rows(index: list[int]) -> None:
    marks = [9, 2, 33, 7, 14, 25]
    apart = take_apart(batch_of(marks), (), no_lengths)
    template = from_text(to_text(apart.template))
    built = template.build(apart.rows.take(np.array(index, np.int64)), {})
    same(built, batch_of([marks[i] for i in index]))


@dataclass
class Thing:
    x: torch.Tensor
    inside: Any


GOOD = torch.arange(4)
KEYS_OF_THEIR_OWN = KeyedJaggedTensor(
    ["a", "b"], torch.arange(3), lengths=torch.tensor([1, 1, 1]), stride_per_key_per_rank=[[1], [2]]
)


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (torch.tensor(3.0), "'inside' is a tensor without dimensions"),
        (torch.arange(3), r"'inside' has 3 samples \(first dimension\), batch part 'x' has 4"),
        ({"a": ["one", "two"]}, r"'inside\.a' has 2 samples \(first dimension\), batch part 'x' has 4"),
        ({"a": "one"}, r"'inside\.a' is of type str: .* if it is the same for all samples, list it"),
        (["one", np.str_("two"), 3, None], r"'inside' is a list with entries of type str_: only entries of the types"),
        ([object()] * 4, "a list with entries of type object: .* Convert them"),
        ([["a", "b", "c", "d"]] * 4, "'inside' is a list of lists, .* name its parts in a dict"),
        ([{"tags": ["a", "b", "c", "d"]}] * 4, "'inside' is a list of lists"),
        ([GOOD, 7], r"'inside\.1' is of type int: .* replicate=\('inside\.1',\)"),
        (np.arange(4), "of type ndarray"),
        ({1: GOOD}, "of type dict: only"),
        (torch.arange(4, device="meta"), "is on meta: batches are balanced over the CPU"),
        (torch.eye(4).to_sparse(), "not a dense tensor"),
        (KEYS_OF_THEIR_OWN, "batch size per key"),
    ],
)
def test_what_cannot_be_split_by_sample_is_refused_by_its_path(bad: Any, match: str) -> None:
    with pytest.raises(DataError, match=match):
        take_apart(Thing(GOOD, bad), (), no_lengths)


def test_types_that_other_ranks_cannot_import_are_named() -> None:
    @dataclass
    class Local:
        x: torch.Tensor

    template = take_apart(Local(GOOD), (), no_lengths).template
    with pytest.raises(DataError, match=r"cannot import test_rebalance_batches:.*Local: define it at the top"):
        to_text(template)


@pytest.mark.parametrize(
    ("part", "change", "match"),
    [
        ("root", {"make": "os:system"}, "os:system is no dataclass on this rank"),
        ("root", {"make": "builtins:dict"}, "builtins:dict is no dataclass"),
        ("root", {"make": "builtins:eval"}, "is no dataclass"),
        ("root", {"make": "no_such_module:Thing"}, "no_such_module:Thing cannot be imported on this rank"),
        ("root", {"make": "test_rebalance_batches:Nothing"}, "cannot be imported on this rank"),
        ("field", {"dtype": "sum"}, "is no dtype"),
        ("whole", {"fields": 3}, "no structure of a batch"),
        ("whole", {"root": {}}, "no structure of a batch"),
    ],
)
def test_a_structure_from_a_peer_is_not_trusted(part: str, change: dict[str, Any], match: str) -> None:
    """It makes no other types than dataclasses that this rank has, and a broken one is an error."""
    whole = json.loads(to_text(take_apart(Thing(GOOD, None), (), no_lengths).template))
    assert whole["root"]["make"] == "test_rebalance_batches:Thing"
    {"root": whole["root"], "field": whole["fields"][0], "whole": whole}[part].update(change)
    with pytest.raises(DataError, match=match):
        from_text(json.dumps(whole))


def test_replicated_parts_are_not_looked_at() -> None:
    apart = take_apart(Thing(GOOD, {"a": object(), "b": 1}), ("inside.a", "inside.b"), no_lengths)
    built = apart.template.build(apart.rows.take(np.array([2])), {"inside.a": 5, "inside.b": None})
    assert built.inside == {"a": 5, "b": None}
    assert built.x.tolist() == [2]
    with pytest.raises(ValueError, match=r"replicate names \['inside.c'\]"):
        take_apart(Thing(GOOD, {"a": 1}), ("inside.a", "inside.c"), no_lengths)
    with pytest.raises(DataError, match="holds no tensor"):
        take_apart({"a": 1}, ("a",), no_lengths)


class Live:
    """A loader whose state is an object that it goes on changing, and that refers to itself."""

    def __init__(self) -> None:
        seen: list[int] = []
        self.state: dict[str, Any] = {"seen": seen, "same": (seen, [seen]), "weights": torch.zeros(3), ("a", 1): [[0]]}
        self.state["itself"] = self.state

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number in range(5):
            self.state["seen"].append(number)
            self.state["weights"] += 1
            self.state["a", 1][0][0] += 1
            yield {"x": torch.arange(3)}

    def state_dict(self) -> dict[str, Any]:
        return self.state


def test_a_state_is_a_copy_that_later_batches_and_callers_do_not_change() -> None:
    with rebalance(Live(), lengths=lambda batch: batch["x"]) as balanced:
        states = []
        for _ in balanced:
            states.append(balanced.state_dict())
            balanced.state_dict()["seen"].append("mine")
    for number, state in enumerate(states, 1):
        assert state["seen"] == list(range(number))
        assert state["same"][0] is state["same"][1][0] is state["seen"]
        assert state["itself"] is state
        assert state["weights"].tolist() == [number] * 3
        assert state["a", 1] == [[number]]


def test_rebalance_has_the_methods_of_states_that_its_loader_has() -> None:
    lengths = {"lengths": lambda batch: batch["x"]}
    with rebalance([{"x": GOOD}], **lengths) as balanced:
        assert not hasattr(balanced, "state_dict")
        assert not hasattr(balanced, "load_state_dict")
        with pytest.raises(AttributeError, match=r"the list in this rebalance\(...\) has no state_dict\(\)"):
            balanced.state_dict()
    with rebalance(Live(), **lengths) as balanced:
        assert hasattr(balanced, "state_dict")
        assert not hasattr(balanced, "load_state_dict")
        with pytest.raises(TypeError, match="has no len"):
            len(balanced)


def test_a_list_of_one_entry_per_sample_is_not_replicated() -> None:
    """One that is the same in every batch belongs to no sample, though it may have as many entries as a batch."""
    names, ids = ["a", "b", "c"], [["1", "2"], ["3", "4", "5"], ["6", "7", "8"]]
    batches = [{"x": torch.arange(len(of)), "names": names, "ids": of} for of in ids]
    options = {"lengths": lambda batch: batch["x"]}
    with rebalance(batches[:2], replicate=("names",), **options) as balanced:
        assert [batch["ids"] for batch in balanced] == ids[:2]
    for replicate in (("names", "ids"), ("ids", "names")):
        with (
            rebalance(batches, replicate=replicate, **options) as balanced,
            pytest.raises(DataError, match="replicate names 'ids', a list with one entry for each of the 2 samples"),
        ):
            list(balanced)


@pytest.mark.parametrize("written", [b"x1", b"", b"f123", b"s\xff"])
def test_entries_from_a_peer_that_cannot_be_read_are_an_error(written: bytes) -> None:
    with pytest.raises(DataError, match="an entry that cannot be read"):
        from_bytes(torch.frombuffer(bytearray(written + b"n"), dtype=torch.uint8), np.array([len(written), 1]), list)


def test_one_rank_passes_batches_through() -> None:
    batches = [batch_of([1, 2, 3]), batch_of([4])]
    with rebalance(Loader(0, [1] * 6), lengths=PATHS) as balanced:
        assert [balanced.state_dict()["at"] for _ in balanced] == [1, 2, 3, 4, 5, 6]  # not of batches made ahead
    with rebalance(batches, lengths=PATHS) as balanced:
        with pytest.raises(ValueError, match="no batch"):
            _ = balanced.last
        got = []
        for batch in balanced:
            got.append(batch)
            assert balanced.last.loss_weight == 1
            assert balanced.last.origin.tolist() == [[0, row] for row in range(len(marks_of(batch)))]
        assert [id(batch) for batch in got] == [id(batch) for batch in batches]
        lengths = batches[1].features["item"].lengths().sum(), batches[1].features["candidate"].lengths().sum()
        counts = {"world_size": 1, "samples": 1, "global_samples": 1}
        items = {"uih": int(lengths[0]), "candidates": int(lengths[1])}
        assert balanced.last.stats == StepStats(epoch=0, step=1, **counts, global_items=items)
        assert len(list(balanced)) == len(balanced) == 2
    with pytest.raises(ValueError, match="closed"):
        iter(balanced)


@pytest.mark.parametrize(
    ("lengths", "match"),
    [
        (
            "features.color",
            r"lengths='features.color' is no jagged part of the batch, which has \['features.cand",
        ),
        (lambda batch: batch.made.float(), "one integer of at least 0 per sample, got float32"),
        (lambda batch: batch.made[:-1], r"has shape \(2,\) for a batch of 3 samples"),
        (lambda batch: {"uih": batch.made - 100}, "'uih' must be one integer of at least 0"),
        (lambda batch: batch.made * 0 + 2**61, r"sum to more than 2\*\*62"),
        (lambda batch: np.full(3, 2**64 - 1, np.uint64), r"sum to more than 2\*\*62"),
    ],
)
def test_bad_lengths_are_refused(lengths: Any, match: str) -> None:
    with rebalance([batch_of([1, 2, 3])], lengths=lengths) as balanced, pytest.raises(DataError, match=match):
        next(iter(balanced))


def test_batches_built_otherwise_are_refused() -> None:
    batches = [{"x": GOOD[:, None]}, {"x": GOOD[:, None].expand(4, 2)}]
    with (
        rebalance(batches, lengths=lambda batch: batch["x"][:, 0]) as balanced,
        pytest.raises(DataError, match=r"'x' was int64\[B, 1\] and is int64\[B, 2\]. Pad"),
    ):
        list(balanced)
    with pytest.raises(TypeError, match="lengths must be a function"):
        rebalance(batches, lengths=3)  # type: ignore[arg-type]
