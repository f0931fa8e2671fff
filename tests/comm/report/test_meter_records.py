"""What the meter records beside waits: lengths, the model's passes, bytes and durations of exchanges."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact import Run, train
from exact_model import Config, mixed
from test_meter import Clock, wait
from torch import nn
from worlds import shared_world

from fscomm.meter.intervals import Pass, Timeline, attribute
from fscomm.meter.lengths import Noted, batch_lengths
from fscomm.meter.meter import BubbleMeter

CONFIG = Config(modules={"a": mixed()}, steps=6, static_graph=False)


class Keyed:
    """Has the reading methods of a KeyedJaggedTensor."""

    def __init__(self, lengths: dict[str, list[int]]) -> None:
        self._lengths = lengths

    def keys(self) -> list[str]:
        return list(self._lengths)

    def values(self) -> torch.Tensor:
        return torch.zeros(int(self.lengths().sum()))

    def lengths(self) -> torch.Tensor:
        return torch.tensor([length for lengths in self._lengths.values() for length in lengths])

    def weights_or_none(self) -> None:
        return None

    def stride(self) -> int:
        return len(next(iter(self._lengths.values())))


class Varying(Keyed):
    """With as many samples per key as it has."""

    def stride_per_key(self) -> list[int]:
        return [len(lengths) for lengths in self._lengths.values()]


@dataclasses.dataclass
class Parts:
    features: Keyed
    more: dict[str, Any]


def test_lengths_of_every_key_are_found_wherever_they_lie() -> None:
    batch = Parts(
        features=Keyed({"item": [3, 0, 3], "time": [3, 0, 3], "user": [1, 1, 1]}),
        more={"x": [torch.zeros(3), Varying({"ad": [2], "shop": [5, 6]})]},
    )
    found = {name: lengths.tolist() for name, lengths in batch_lengths(batch).items()}
    assert found == {"item": [3, 0, 3], "time": [3, 0, 3], "user": [1, 1, 1], "ad": [2], "shop": [5, 6]}
    counted = Noted(batch, batch_lengths).counted()
    assert counted == {"item": ([0, 3], [1, 2]), "user": ([1], [3]), "ad": ([2], [1]), "shop": ([5, 6], [1, 1])}
    assert batch_lengths(torch.zeros(3)) == {}


@pytest.mark.parametrize("given", [torch.zeros(2), torch.zeros((2, 2), dtype=torch.int64), np.zeros(2)])
def test_lengths_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"lengths of 'item' are .*: integers \[B\] are needed"):
        Noted(None, lambda batch: {"item": given}).counted()


def test_passes_are_timed_without_their_waits() -> None:
    passes = (
        Pass("forward", 11, 17, 0),
        Pass("lookup", 11, 12, 5),
        Pass("lookup", 16, 17, 7),
        Pass("backward", 18, 28, 0),
    )
    waits = (wait("embeddings", 12, 13, 16, number=1), wait("dense", 20, 27, 29, number=2))
    line = Timeline(0, 0, 10, 30, waits, passes, {"item": ([2], [1])}, (("ids", 8), ("dense", 4), ("ids", 2)))
    (step,) = attribute({0: [line]}, [0.0])
    assert step.passes == {"forward": (3, 0), "lookup": (2, 12), "backward": (9, 0)}
    assert step.sent == {"ids": (2, 10), "dense": (1, 4)}
    assert step.lengths == {"item": ([2], [1])}


def test_an_exchange_lasts_from_the_last_rank_that_gives_its_part() -> None:
    """Of what ended before the thread came to wait, and of what has no size, the duration is not known."""
    here = (
        wait("embeddings", 1, 2, 9, number=1, size=64),
        wait("ids", 1, 9, 9, number=2, size=64),
        wait("other", 1, 9, 10, number=3),
    )
    there = (wait("embeddings", 104, 108, 109, number=1, size=32), wait("ids", 101, 109, 110, number=2, size=64))
    mine, other = attribute({0: [Timeline(0, 0, 0, 10, here)], 1: [Timeline(0, 100, 100, 110, there)]}, [0.0, -100.0])
    assert [tuple(one) for one in mine.transfers] == [("embeddings", 64, 5)]
    assert [tuple(one) for one in other.transfers] == [("embeddings", 32, 5), ("ids", 64, 9)]
    (alone,) = attribute({0: [Timeline(0, 0, 0, 10, here)]}, None)
    assert alone.transfers == ()


class Ticking(nn.Module):
    """Takes 2 seconds forward and 3 backward."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.tick(2)
        y = x * self.weight
        y.register_hook(lambda gradient: self.clock.tick(3))
        return y


def steps_of(ahead: int, count: int = 5) -> tuple[list[dict[str, Any]], Ticking]:
    clock = Clock()
    model = Ticking(clock)

    def lengths(batch: int) -> dict[str, np.ndarray]:
        return {"item": np.array([batch, batch, 9])}

    with BubbleMeter(model, clock=clock) as meter:
        for _ in meter.watch(range(count), lengths=lengths, ahead=ahead):
            model(torch.ones(1)).sum().backward()
            clock.tick(1)
    return meter.report().to_dict()["steps"], model


def test_forward_and_backward_of_any_model_are_timed() -> None:
    steps, model = steps_of(0)
    assert [step["passes_s"] for step in steps] == [{"forward": 2, "backward": 3}] * 5
    assert [step["compute_s"] for step in steps] == [6] * 5
    assert [step["lengths"]["item"] for step in steps[:2]] == [
        {"lengths": [0, 9], "counts": [2, 1]},
        {"lengths": [1, 9], "counts": [2, 1]},
    ]
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not hasattr(torch.autograd.backward, "__wrapped__")


def test_lengths_of_a_pipeline_are_those_of_the_batch_it_trains_on() -> None:
    steps, _ = steps_of(2)
    assert [step["lengths"].get("item", {}).get("lengths") for step in steps] == [None, None, [0, 9], [1, 9], [2, 9]]
    with pytest.raises(ValueError, match="ahead must be 0 or more batches, got -1"):
        steps_of(-1)


def metered(run: Run) -> Iterator[Any]:
    with BubbleMeter(run.model) as meter:
        for step, batch in enumerate(meter.watch(run.loader())):
            run.train(step, batch)
    run.reports.append(meter)


def metered_with_fscomm(run: Run) -> None:
    with run.enable() as comm, BubbleMeter(run.model) as meter:
        for step, batch in enumerate(meter.watch(comm.lookahead(run.loader()))):
            run.train(step, batch)
    run.reports.append(meter)


def case_records(rank: int, size: int, kind: str, folder: str) -> Any:
    run = train(rank, size, CONFIG, metered if kind == "plain" else metered_with_fscomm, kind)
    meter = run.reports[-1]
    path = Path(folder) / f"{kind}-{rank}.json"
    meter.save(path, skip=1)
    return path.exists(), [step.to_dict() for step in meter.report(skip=1).steps if step.rank == rank]


@pytest.mark.parametrize("kind", ["plain", "fscomm"])
def test_a_torchrec_model_leaves_a_whole_record(kind: str, tmp_path: Path) -> None:
    answers = shared_world(2).run(case_records, kind, str(tmp_path))
    assert [written for written, _ in answers] == [True, False], "rank 0 writes for all"
    document = json.loads((tmp_path / f"{kind}-0.json").read_text())
    assert sorted((step["step"], step["rank"]) for step in document["steps"]) == [
        (n, r) for n in range(1, CONFIG.steps) for r in range(2)
    ]
    for _, steps in answers:
        # A thread of fscomm may exchange at the end of one step or at the start of the next.
        exchanged = {kind for step in steps for kind in step["exchanges"]}
        assert {"ids", "embeddings", "gradients", "dense"} <= exchanged
        for step in steps:
            assert {"forward", "backward"} <= set(step["passes_s"])
            assert min(step["passes_s"].values()) >= 0
            assert step["lengths"], "found in the batches"
            assert step["bytes"]["dense"] > 0
            assert all(seconds >= 0 for _, _, seconds in step["transfers"])
            if kind == "plain":
                assert step["rows"]["lookup"] == step["rows"]["update"] > 0
