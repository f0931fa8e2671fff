"""What the meter records beside waits: lengths of the samples, and the model's passes."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from test_meter import Clock
from torch import nn
from torchrec import KeyedJaggedTensor

from fsmeter import BubbleMeter
from fsmeter.lengths import batch_lengths, counted


def keyed(lengths: dict[str, list[int]]) -> KeyedJaggedTensor:
    """With as many samples per key as it has lengths."""
    flat = torch.tensor([length for lengths in lengths.values() for length in lengths])
    strides = [[len(lengths)] for lengths in lengths.values()]
    one = len({stride for (stride,) in strides}) == 1
    return KeyedJaggedTensor(
        keys=list(lengths),
        values=torch.zeros(int(flat.sum())),
        lengths=flat,
        **({"stride": strides[0][0]} if one else {"stride_per_key_per_rank": strides}),
    )


@dataclasses.dataclass(slots=True)
class Parts:
    features: KeyedJaggedTensor
    more: Any

    @property
    def made_when_asked(self) -> KeyedJaggedTensor:
        raise AssertionError("code of the user's was run")


class Loose:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


def test_lengths_of_every_key_are_found_wherever_they_lie() -> None:
    batch = Parts(
        features=keyed({"item": [3, 0, 3], "time": [3, 0, 3], "user": [1, 1, 1]}),
        more={"x": [torch.zeros(3), None, "text", Loose(deep=(keyed({"ad": [2], "shop": [5, 6]}),))]},
    )
    batch.more["the batch itself"] = batch
    found = {name: lengths.tolist() for name, lengths in batch_lengths(batch).items()}
    assert found == {"item": [3, 0, 3], "time": [3, 0, 3], "user": [1, 1, 1], "ad": [2], "shop": [5, 6]}
    assert counted(batch_lengths(batch)) == {
        "item": ([0, 3], [1, 2]),
        "user": ([1], [3]),
        "ad": ([2], [1]),
        "shop": ([5, 6], [1, 1]),
    }
    assert batch_lengths(torch.zeros(3)) == {}


@pytest.mark.parametrize("given", [torch.zeros(2), torch.zeros((2, 2), dtype=torch.int64), np.zeros(2)])
def test_lengths_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"lengths of 'item' are .*: integers \[B\] are needed"):
        counted({"item": given})


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
