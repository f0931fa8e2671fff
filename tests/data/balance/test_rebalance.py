"""rebalance around other people's loaders: their batch types, their samples, whole and once."""

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from patience import PATIENCE_S
from rank_loaders import threads_end
from torchrec import KeyedJaggedTensor
from worlds import shared_world

from fsdata import Balance, Polynomial
from fsdata.batch.batch import global_mean
from fsdata.batch.jagged import Jagged
from fsdata.errors import MismatchError, PeerError
from fsdata.tensors.rebalancing import rebalance

WIDE = 3


class Targets(NamedTuple):
    click: torch.Tensor
    rating: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """One of everything that can be split by sample."""

    features: KeyedJaggedTensor
    weighted: KeyedJaggedTensor
    prices: Jagged
    targets: Targets
    other: dict[str, Any]
    nothing: None = None
    made: torch.Tensor = dataclasses.field(init=False)


def lengths_of(mark: int) -> tuple[int, int]:
    """History and candidates of the sample `mark`; both often 0."""
    return (mark * 7 % 11) * (mark % 3 != 0), (mark * 5 % 4) * (mark % 4 != 0)


def entry_of(mark: int) -> str | bytes | float | None:
    """One of every type that moves with its sample, in any mixture."""
    return (f"\u00e9{mark} \ud800", None, bytes([mark % 256, 0]), -mark * 10**20, mark / 3, mark % 4 < 2)[mark % 6]


def array_of(entries: list[Any]) -> np.ndarray:
    found = np.empty(len(entries), object)
    found[:] = entries
    return found


def batch_of(marks: list[int]) -> Batch:
    """The samples `marks`; every value follows from its sample's mark, exactly in every dtype used."""
    history = [lengths_of(mark)[0] for mark in marks]
    candidates = [lengths_of(mark)[1] for mark in marks]
    items = [mark * 100 + i for mark, count in zip(marks, history, strict=True) for i in range(count)]
    shown = [mark * 100 + 50 + i for mark, count in zip(marks, candidates, strict=True) for i in range(count)]
    features = KeyedJaggedTensor(
        keys=["item", "candidate"],
        values=torch.tensor(items + shown, dtype=torch.int64),
        lengths=torch.tensor(history + candidates, dtype=torch.int64),
    )
    weighted = KeyedJaggedTensor(
        keys=["tag"],
        values=torch.tensor(items, dtype=torch.float32),
        weights=torch.tensor(items, dtype=torch.float64) + 0.5,
        lengths=torch.tensor(history, dtype=torch.int32),
    )
    rows = torch.tensor(marks, dtype=torch.int64)
    both = torch.stack([rows, rows + 1], dim=1).to(torch.float16)
    batch = Batch(
        features=features,
        weighted=weighted,
        prices=Jagged.from_lengths(torch.tensor(items).float()[:, None].expand(-1, 2), torch.tensor(history)),
        targets=Targets(click=rows % 2 == 0, rating=(rows[:, None] + torch.arange(2 * WIDE)).double()[:, ::2]),
        other={
            "list": [rows.to(torch.uint8), (rows.to(torch.int16), both)],
            "ordered": OrderedDict(z=both.to(torch.bfloat16), a=rows.to(torch.int32)[:, None, None]),
            "empty": torch.empty(len(marks), 0),
            "ids": [str(mark) for mark in marks],
            "mixed": tuple(map(entry_of, marks)),
            "objects": array_of([None if mark % 2 else str(mark) for mark in marks]),
            "nothing": [],
        },
    )
    object.__setattr__(batch, "made", rows * 2)
    return batch


def marks_of(batch: Batch) -> list[int]:
    return batch.other["list"][1][0].tolist()


def same(left: Any, right: Any) -> None:
    """Equal structure, types, dtypes, shapes and values."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, KeyedJaggedTensor):
        assert left.keys() == right.keys()
        assert left.stride() == right.stride()
        same(left.values(), right.values())
        same(left.lengths(), right.lengths())
        same(left.weights_or_none(), right.weights_or_none())
    elif dataclasses.is_dataclass(left):
        for field in dataclasses.fields(left):
            same(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            same(left[key], right[key])
    elif isinstance(left, tuple | list | np.ndarray):
        for one, other in zip(left, right, strict=True):
            same(one, other)
    else:
        assert left == right


class Loader:
    """Batches of one rank, samples rank * 32, + 1, + 2, ..., cut into the given sizes; resumable after any batch."""

    def __init__(self, rank: int, sizes: list[int]) -> None:
        marks = iter(range(rank * 32, rank * 32 + sum(sizes)))
        self.batches = [[next(marks) for _ in range(size)] for size in sizes]
        self.at = 0

    def __iter__(self) -> Iterator[Batch]:
        while self.at < len(self.batches):
            self.at += 1
            yield batch_of(self.batches[self.at - 1])
        self.at = 0

    def __len__(self) -> int:
        return len(self.batches)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


PATHS = {"uih": "features.item", "candidates": "features.candidate"}
SIZES = [[4, 4, 4, 1], [6, 0], []]


def two_epochs(rank: int, world_size: int) -> list[tuple[list[int], list[list[int]], int]]:
    """Per step the samples received, their origin, and the number of samples over all ranks."""
    out = []
    with rebalance(Loader(rank, SIZES[rank]), lengths=PATHS, timeout_s=PATIENCE_S) as balanced:
        assert len(balanced) == len(SIZES[rank])
        for _ in range(2):
            for batch in balanced:
                marks = marks_of(batch)
                same(batch, batch_of(marks))
                last = balanced.last
                assert (last.stats.samples, last.stats.world_size) == (len(marks), world_size)
                assert (last.stats.straggler_after or 0) <= (last.stats.straggler_before or 0)
                assert last.loss_weight == len(marks) * world_size / max(last.stats.global_samples, 1)
                for over, count, total in (
                    ("samples", len(marks), last.stats.global_samples),
                    ("candidates", len(batch.features["candidate"].values()), last.stats.global_items["candidates"]),
                ):
                    mean = global_mean(torch.ones(count, dtype=torch.float64), last, over).item()
                    assert mean == count * (world_size / max(total, 1))
                out.append((marks, last.origin.tolist(), last.stats.global_samples))
    threads_end()
    return out


def test_every_sample_of_any_batch_type_arrives_once_and_whole() -> None:
    """Also with ranks that end early, have empty batches, or never have one."""
    answers = shared_world(3).run(two_epochs)
    most = max(map(len, SIZES))
    assert {len(answer) for answer in answers} == {2 * most}
    loaders = [Loader(rank, sizes).batches for rank, sizes in enumerate(SIZES)]
    for number in range(2 * most):
        step = number % most
        read = [batches[step] if step < len(batches) else [] for batches in loaders]
        got = [mark for answer in answers for mark in answer[number][0]]
        assert sorted(got) == sorted(chain(*read))
        for marks, origin, total in (answer[number] for answer in answers):
            assert [read[rank][row] for rank, row in origin] == marks
            assert total == len(got)
        counts = [len(answer[number][0]) for answer in answers]
        assert max(counts) - min(counts) <= 1


def resume(rank: int, world_size: int) -> None:
    options: dict[str, Any] = {"lengths": PATHS, "timeout_s": PATIENCE_S}
    states, batches = [], []
    with rebalance(Loader(rank, [3, 4, 2, 5]), **options) as balanced:
        states.append(balanced.state_dict())
        for batch in balanced:
            batches.append(batch)
            states.append(json.loads(json.dumps(balanced.state_dict())))
    assert states[:4] == [{"at": at} for at in range(4)]
    for at in range(len(batches)):
        with rebalance(Loader(rank, [3, 4, 2, 5]), **options) as again:
            again.load_state_dict(states[at])
            rest = list(again)
        same(rest, batches[at:])


def test_state_is_the_loaders_as_of_the_batch_last_yielded() -> None:
    shared_world(2).run(resume)


def balance_costs(rank: int, world_size: int) -> tuple[int, list[int]]:
    """The sum of all lengths, and those of this rank. Rank 0 reads the two that are too long for 32 bits."""
    mine = torch.tensor([2**32 + 5, 2**33, 7] if rank == 0 else [1, 2, 3])
    options: dict[str, Any] = {"lengths": lambda batch: batch["cost"], "timeout_s": PATIENCE_S}
    with rebalance([{"cost": mine}], balance=Balance(cost=Polynomial(linear=1, quadratic=0)), **options) as balanced:
        (batch,) = balanced
        return balanced.last.stats.global_items["length"], sorted(batch["cost"].tolist())


@pytest.mark.parametrize("ranks", [1, 2])
def test_lengths_may_be_costs_of_any_size(ranks: int) -> None:
    answers = shared_world(ranks).run(balance_costs)
    assert {total for total, _ in answers} == {sum(cost for _, of_rank in answers for cost in of_rank)}
    if ranks == 2:
        assert sorted(max(of_rank) for _, of_rank in answers) == [2**32 + 5, 2**33]


def break_and_go_on(rank: int, world_size: int) -> tuple[list[int], str]:
    """Leave the first epoch after one batch, then run a whole one; rank 2 leaves the third one alone."""
    text = ""
    with rebalance(Loader(rank, [2] * 9), lengths=PATHS, timeout_s=PATIENCE_S) as balanced:
        for _ in balanced:
            break
        balanced.load_state_dict({"at": 0})
        marks = [mark for batch in balanced for mark in marks_of(batch)]
        try:
            for _ in balanced:
                if rank == 2:
                    break
        except PeerError as error:
            text = str(error)
    threads_end()
    return marks, text


def test_an_epoch_left_early_does_not_disturb_the_next_and_a_rank_that_stops_alone_is_named() -> None:
    answers = shared_world(3).run(break_and_go_on)
    assert sorted(chain(*(marks for marks, _ in answers))) == [rank * 32 + i for rank in range(3) for i in range(18)]
    texts = [text for _, text in answers]
    assert all("rank 2 left the loop" in text for text in texts[:2])
    assert texts[2] == ""


class Failing(Loader):
    def __iter__(self) -> Iterator[Batch]:
        yield from map(batch_of, self.batches[:2])
        raise OSError("disk on fire")


def one_fails(rank: int, world_size: int) -> tuple[int, str]:
    loader = (Failing if rank == 1 else Loader)(rank, [2] * 6)
    seen: list[Batch] = []
    with (
        rebalance(loader, lengths=PATHS, timeout_s=PATIENCE_S) as balanced,
        pytest.raises(Exception, match="disk") as caught,
    ):
        seen.extend(balanced)
    assert isinstance(caught.value, OSError if rank == 1 else PeerError)
    return len(seen), str(caught.value)


def test_an_error_of_one_loader_is_raised_on_all_ranks_at_its_batch() -> None:
    answers = shared_world(3).run(one_fails)
    assert [seen for seen, _ in answers] == [2, 2, 2]
    assert answers[0][1] == "rank 1 failed at step 2 of epoch 0: OSError: disk on fire"


def others(rank: int, world_size: int) -> None:
    """Plain dicts, replicated parts, other ways to say lengths; structures that differ between ranks."""

    def batches(width: int = 2) -> list[dict[str, Any]]:
        rows = torch.arange(4) + 10 * rank
        return [{"x": rows[:, None].expand(4, width), "n": rows % 3, "epoch": 3 + rank, "mask": torch.ones(7)}] * 2

    options: dict[str, Any] = {"replicate": ("epoch", "mask"), "timeout_s": PATIENCE_S}
    with rebalance(batches(), lengths=lambda batch: batch["n"], **options) as balanced:
        for batch in balanced:
            assert batch["epoch"] == 3 + rank
            assert torch.equal(batch["n"], batch["x"][:, 0] % 3)
            assert balanced.last.stats.global_items["length"] == sum((i + 10 * r) % 3 for i in range(4) for r in (0, 1))
        with pytest.raises(AttributeError, match="state_dict"):
            balanced.state_dict()

    differs = r"x: rank 0 has 'int64\[B, 2\]', rank 1 'int64\[B, 3\]'"
    with (
        rebalance(batches(2 + rank), lengths=lambda batch: batch["n"], **options) as balanced,
        pytest.raises(MismatchError, match=differs),
    ):
        next(iter(balanced))
    with pytest.raises(MismatchError, match="replicate: rank 0 has"):
        rebalance(batches(), lengths="x", replicate=options["replicate"][rank:], timeout_s=PATIENCE_S)
    with pytest.raises(Exception, match="write replicate=") as caught:
        rebalance(batches(), lengths="x", replicate="mask" if rank else (), timeout_s=PATIENCE_S)
    assert isinstance(caught.value, TypeError if rank else PeerError)


def test_dicts_replicated_parts_and_ranks_that_differ() -> None:
    shared_world(2).run(others)
