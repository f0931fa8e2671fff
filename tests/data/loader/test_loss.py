"""global_mean and loss_weight: averaged over ranks, the gradient is that of the global batch, to the bit.

Losses and counts are chosen so that every product and sum is exact in float64; so equality is torch.equal.
"""

from types import SimpleNamespace

import pytest
import torch

from fsdata.batch.batch import StepStats, global_mean, loss_weight
from fsdata.batch.jagged import Jagged

FEATURES = 5
SIZES = {
    "variable": [1, 9, 4, 2],
    "an empty rank": [8, 0, 5, 3],
    "one rank has it all": [16, 0, 0, 0],
}


def batch_of(stats: StepStats, **labels: torch.Tensor | Jagged) -> SimpleNamespace:
    """As much of a batch as a loss looks at."""
    return SimpleNamespace(stats=stats, labels=labels)


def global_batch(seed: int, samples: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs [N, FEATURES], targets [N], candidates per sample [N]; integers, 32 candidates in all."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(-8, 9, (samples, FEATURES), generator=generator).double()
    targets = torch.randint(-8, 9, (samples,), generator=generator).double()
    candidates = torch.bincount(torch.randint(0, samples, (32,), generator=generator), minlength=samples)
    return inputs, targets, candidates


def on_rank(start: int, stop: int, candidates: torch.Tensor, world_size: int) -> SimpleNamespace:
    mine, of_all = candidates[start:stop], {"candidates": int(candidates.sum())}
    counts = {"world_size": world_size, "samples": stop - start, "global_samples": len(candidates)}
    click = Jagged.from_lengths(torch.zeros(int(mine.sum())), mine)
    stats = StepStats(epoch=0, step=0, **counts, global_items=of_all)
    return batch_of(stats, rated=torch.zeros(stop - start), click=click)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("over", ["samples", "rated", "click", "loss_weight"])
def test_averaged_gradient_is_that_of_the_global_batch(sizes: list[int], over: str) -> None:
    inputs, targets, candidates = global_batch(7, sum(sizes))
    weight = torch.arange(FEATURES, dtype=torch.float64).requires_grad_()

    def losses(start: int, stop: int) -> torch.Tensor:
        """Per candidate, the sample's error repeated, if `over` counts candidates; else per sample."""
        error = (inputs[start:stop] @ weight - targets[start:stop]) ** 2
        return error.repeat_interleave(candidates[start:stop]) if over == "click" else error

    (wanted,) = torch.autograd.grad(losses(0, sum(sizes)).mean(), weight)
    assert wanted.abs().sum() > 0
    grads = []
    start = 0
    for size in sizes:
        batch = on_rank(start, start + size, candidates, len(sizes))
        mine = losses(start, start + size)  # none on an empty rank: backward runs through all the same
        if over == "loss_weight":
            loss = mine.mean() * loss_weight(batch.stats) if size else mine.sum()
        else:
            loss = global_mean(mine, batch, over)
        grads += torch.autograd.grad(loss, weight)
        start += size
    averaged = torch.stack(grads).sum(0) / len(sizes)
    if over == "loss_weight":  # sample counts that are no powers of two do not divide exactly
        torch.testing.assert_close(averaged, wanted, rtol=1e-14, atol=0)
    else:
        assert torch.equal(averaged, wanted)


def test_events_of_a_sequence_can_be_counted() -> None:
    stats = StepStats(epoch=0, step=0, world_size=2, samples=1, global_samples=2, global_items={"uih": 12})
    assert global_mean(torch.ones(3), batch_of(stats), over="uih").item() == 3 * 2 / 12


def test_what_cannot_be_counted_is_refused() -> None:
    batch = on_rank(0, 2, torch.tensor([2, 1]), 1)
    with pytest.raises(ValueError, match=r"one loss per item, shape \[2\], got \[\]"):
        global_mean(torch.tensor(1.0), batch)
    with pytest.raises(ValueError, match=r"shape \[3\], got \[2\]"):
        global_mean(torch.ones(2), batch, over="click")
    with pytest.raises(ValueError, match="can be counted over candidates, click, rated, samples"):
        global_mean(torch.ones(2), batch, over="clicks")
    unknown = StepStats(epoch=0, step=0, world_size=2, samples=2, global_samples=4)
    with pytest.raises(ValueError, match="the number of its items on all ranks is unknown"):
        global_mean(torch.ones(3), batch_of(unknown, **batch.labels), over="click")
