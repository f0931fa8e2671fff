"""What do the small exchanges of a balanced step take, and what did three rings take?

    python benchmarks/step_exchange.py [--ranks 2 4 8] [--rounds 5] [--steps 20]

Ranks are processes of this machine, over gloo. *Now*: statuses with lengths, then the plans compared, as a
`StepExchange` does it. *Rings*: status words, lengths and plans, each by gloo's own gather, which goes round a ring.
Both alternate in the same processes, so a machine that is busy for a while spoils neither. Nothing is decoded, planned
or moved.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from common.lengths import PAPER_LIKE
from common.table import add_results_option, emit

from fsdata.balance.exchange import StatusWord, StepExchange, messages
from fsdata.balance.exchange.step_exchange import decode_lengths, encode_lengths
from fsranks.messages import direct, doubling
from fsranks.rank_context import resolve

PER_RANK = 128
GROUPS = 2
WARM_UP = 3


def rings(exchange: StepExchange, lengths: np.ndarray, step: int) -> None:
    """The exchanges of a step as three gathers round a ring."""
    gloo = exchange._group._gloo
    word = messages.encode(StatusWord(epoch=0, step=step, rows=lengths.shape[1]), step, 1)
    for mine in (word, lengths.astype(np.int32), np.array([step])):
        source = torch.from_numpy(mine.reshape(-1).view(np.uint8))
        gloo._allgather_base(torch.empty(exchange.context.world_size * len(source), dtype=torch.uint8), source).wait()


def now(exchange: StepExchange, lengths: np.ndarray, step: int) -> None:
    longest = int(lengths.max())
    status = StatusWord(epoch=0, step=step, rows=lengths.shape[1], longest=longest)
    statuses, texts = exchange._words(status, 1, encode_lengths(lengths, longest))
    decode_lengths(statuses, texts, len(lengths))
    exchange._plans.gather(np.array([step]))


def gathers(exchange: StepExchange, size: int) -> dict[str, Callable[[], object]]:
    """Each way to gather messages of `size` bytes, by name."""
    group = exchange._group
    mine = torch.zeros(size, dtype=torch.uint8)
    out = torch.empty(size * group.world_size, dtype=torch.uint8)
    return {
        "ring": lambda: group._gloo._allgather_base(out, mine).wait(),
        "direct": lambda: direct(group._gloo, group.rank, group.world_size, mine),
        "doubling": lambda: doubling(group._gloo, group.rank, group.world_size, mine),
    }


def work(rank: int, world_size: int, address: str, rounds: int, steps: int, answers: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    exchange = StepExchange(resolve(), timeout_s=300)
    lengths = np.stack([PAPER_LIKE.batch(PER_RANK, seed=group * world_size + rank) for group in range(GROUPS)])
    ways: dict[str, Callable[[int], object]] = {
        "rings": lambda step: rings(exchange, lengths, step),
        "now": lambda step: now(exchange, lengths, step),
    }
    for size in (96, 1024, 65536):
        for name, gather in gathers(exchange, size).items():
            ways[f"{name} {size}"] = lambda _, gather=gather: gather()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    step = 0
    for number in range(rounds + 1):  # the first is a warm-up
        for name, way in ways.items() if number % 2 else reversed(ways.items()):
            count = steps if number else WARM_UP
            dist.barrier()
            start = time.perf_counter()
            for _ in range(count):
                way(step)
                step += 1
            seconds[name].append((time.perf_counter() - start) / count)
    exchange.close()
    if rank == 0:
        answers.put({name: [1e3 * each for each in found[1:]] for name, found in seconds.items()})
    dist.barrier()
    dist.destroy_process_group()


def measure(world_size: int, rounds: int, steps: int) -> dict[str, list[float]]:
    """Way -> ms of each round on rank 0."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    address = f"tcp://127.0.0.1:{store.port}"
    del store
    answers = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(work, (world_size, address, rounds, steps, answers), nprocs=world_size)
    return answers.get()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    add_results_option(parser)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    found = {ranks: measure(ranks, arguments.rounds, arguments.steps) for ranks in arguments.ranks}
    rows = []
    for ranks, ways in found.items():
        ratios = [new / old for new, old in zip(ways["now"], ways["rings"], strict=True)]
        rows.append(
            [ranks, statistics.median(ways["rings"]), statistics.median(ways["now"]), statistics.median(ratios)]
        )
    raw = {str(ranks): ways for ranks, ways in found.items()}
    emit(
        "step_exchange",
        f"Small exchanges of a balanced step, ms ({PER_RANK} samples a rank, {GROUPS} groups of lengths)",
        ["ranks", "rings", "now", "now / rings"],
        rows,
        notes=["Median of the rounds on rank 0; the ratio is taken within each round."],
        extra={"ms": raw},
        results=arguments.results,
        data="lengths, made as it runs",
    )
    emit(
        "step_exchange_gathers",
        "One gather, ms",
        ["ranks", "bytes of each rank", "ring", "direct", "doubling"],
        [
            [ranks, size, *(statistics.median(ways[f"{name} {size}"]) for name in ("ring", "direct", "doubling"))]
            for ranks, ways in found.items()
            for size in (96, 1024, 65536)
        ],
        notes=["`fsranks/messages.py` takes direct up to 8 ranks and 128 KiB, else doubling."],
        results=arguments.results,
        data="bytes, made as it runs",
    )


if __name__ == "__main__":
    main()
