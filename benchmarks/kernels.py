"""Packing jagged samples by destination rank, and back: our kernels against PyTorch (the paper's Figure 7).

    python benchmarks/kernels.py [--rounds 7]

One rank's batch goes into a send buffer by (destination, key, sample), as before an all-to-all, and comes back. Eager
PyTorch is measured in two ways: a loop over ranks, and one large index. On a GPU, where there is
one, the same with Triton.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from common.table import argument_parser, emit

from fsdata.embedding.kernels.jagged_ops import Ranges, ranged_combine, ranged_dispatch

SAMPLES, KEYS, WIDTH = 2048, 3, 16
MEDIAN, SIGMA = 40.0, 0.55
WORLDS = (32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """values: float32 [T, WIDTH], key-major; lengths: int64 [KEYS, SAMPLES]; rank: int64 [SAMPLES]."""

    values: torch.Tensor
    lengths: torch.Tensor
    rank: torch.Tensor
    world_size: int


def batch(world_size: int, device: str) -> Batch:
    random = torch.Generator().manual_seed(0)
    drawn = torch.empty(SAMPLES).log_normal_(float(torch.tensor(MEDIAN).log()), SIGMA, generator=random)
    lengths = drawn.round().long().clamp(1, 1000).expand(KEYS, SAMPLES).contiguous()
    return Batch(
        values=torch.randn(int(lengths.sum()), WIDTH, generator=random).to(device),
        lengths=lengths.to(device),
        rank=(torch.randperm(SAMPLES, generator=random) % world_size).to(device),
        world_size=world_size,
    )


def loop_over_ranks(given: Batch) -> torch.Tensor:
    """For every rank and key, the rows that go there."""
    parts = []
    keys = given.values.split(given.lengths.sum(1).tolist())
    for to in range(given.world_size):
        chosen = given.rank == to
        for key, values in enumerate(keys):
            parts.append(values[chosen.repeat_interleave(given.lengths[key])])
    return torch.cat(parts)


def one_index(given: Batch) -> torch.Tensor:
    lengths = given.lengths.flatten()
    order = given.rank.expand(given.lengths.shape).reshape(-1).argsort(stable=True)
    starts = (lengths.cumsum(0) - lengths)[order]
    chosen = lengths[order]
    first = chosen.cumsum(0) - chosen
    shift = (starts - first).repeat_interleave(chosen)
    return given.values.index_select(0, shift + torch.arange(len(shift), device=shift.device))


def ours(given: Batch) -> torch.Tensor:
    return ranged_dispatch(given.lengths, given.rank, items=len(given.values)).apply(given.values)


def ours_back(given: Batch) -> torch.Tensor:
    return ranged_combine(given.lengths, given.rank, items=len(given.values)).apply(given.values)


def moved_only(plan: Ranges) -> Callable[[Batch], torch.Tensor]:
    return lambda given: plan.apply(given.values)


def milliseconds(calls: dict[str, Callable[[Batch], torch.Tensor]], given: Batch, rounds: int) -> dict[str, float]:
    """Medians; all ways once per round, so that a slow moment hits all of them."""
    device = given.values.device.type
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call(given)
            if device == "cuda":
                torch.cuda.synchronize()
            if number:
                taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in taken.items()}


def row(world_size: int, device: str, rounds: int) -> list[object]:
    given = batch(world_size, device)
    wanted = ours(given)
    for other in (loop_over_ranks, one_index):
        if not torch.equal(other(given), wanted):
            raise SystemExit(f"{other.__name__} and our kernel disagree: nothing to compare")
    if not torch.equal(ours_back(replace(given, values=wanted)), given.values):
        raise SystemExit("combine does not undo dispatch: nothing to compare")
    plan = ranged_dispatch(given.lengths, given.rank)
    ways = {
        "loop": loop_over_ranks,
        "index": one_index,
        "dispatch": ours,
        "combine": ours_back,
        "copy alone": moved_only(plan),
    }
    return [device, world_size, *milliseconds(ways, given, rounds).values()]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    rows = [row(world_size, device, arguments.rounds) for device in devices for world_size in WORLDS]
    emit(
        "kernels",
        f"Jagged dispatch and combine, ms: {SAMPLES} samples, {KEYS} keys, rows of {WIDTH} float32, one thread",
        ["device", "ranks", "eager: loop over ranks", "eager: one index", "dispatch", "combine", "copy alone"],
        rows,
        notes=[
            "dispatch, combine: planning and copying; copy alone: with a plan that is used again. Medians.",
            "The paper (GPU, 32 and 512 ranks): PyTorch 3 and 48.9 ms, Triton 0.1 and 0.6 ms.",
        ],
        results=arguments.results,
        data="random samples",
    )


if __name__ == "__main__":
    main()
