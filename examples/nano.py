"""nano-FreeScale: how FreeScale works, in one file of torch and numpy that can be read in half an hour.

    python examples/nano.py                                  # starts two ranks
    torchrun --nproc-per-node 4 examples/nano.py

A sequence recommender learns from histories of very different length. Its embedding table is sharded over the ranks by
rows; the model behind it is small and replicated. Ranks wait twice in every step: for the rank with the longest
histories, and for rows and gradients on the links. FreeScale removes most of both waits and changes no result.

`fsdata` is sections 1 and 2 for Parquet files, `fscomm` is section 5 for TorchRec's tables. Paper: arXiv 2604.24073.

W ranks; N samples of a global batch, B of them on this rank; L events of a sample; S samples of an epoch; R rows and D
columns of the table; n ids that this rank asks for in a step, m ids that all ranks ask of this rank.
"""

import os
import tempfile
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

S, N, LONGEST, STEPS = 512, 64, 400, 12
R, D, LEARNING_RATE, EPS = 20_000, 16, 0.05, 1e-8

Arrival = Callable[[], Tensor]  # values on their way to this rank: the call blocks until they are here


def send(values: Tensor, sent: list[int], received: list[int], link: dist.ProcessGroup | None = None) -> Arrival:
    """Start an all-to-all of values [sum(sent), ...], in order of destination. They arrive in order of source.

    sent, received: [W], how many with each rank. Both ranks of a pair know this before: from a plan, or a message.
    """
    out = values.new_empty(sum(received), *values.shape[1:])
    work = dist.all_to_all_single(out, values, received, sent, group=link, async_op=True)
    return lambda: (work.wait(), out)[1]


def all_gather(values: Tensor, sizes: list[int]) -> Tensor:
    """The values of all ranks, `sizes` [W] of each. Blocks until they are here."""
    return send(torch.cat([values] * len(sizes)), [len(values)] * len(sizes), sizes)()


# 1. The data ----------------------------------------------------------------------------------------------------------
def global_batch(seed: int, position: int) -> np.ndarray:
    """int64 [N], the samples of a step: a pure function of seed and position, whatever the number of ranks."""
    epoch, step = divmod(position, S // N)
    key = np.random.SeedSequence((seed, epoch)).generate_state(2, np.uint64)
    keys = np.random.Philox(key=key).random_raw(S)  # defined to the bit, unlike `Generator.permutation`
    return np.argsort(keys, kind="stable")[step * N : (step + 1) * N]


def read_sample(number: int) -> np.ndarray:
    """int64 [1 + L]: the label, then the ids of a history. Lengths are log-normal, and few ids are very frequent."""
    draw = np.random.default_rng(number)
    length = int(np.clip(draw.lognormal(3, 1), 1, LONGEST))
    ids = (R * draw.random(length) ** 2).astype(np.int64) * 7919 % R  # the factor spreads frequent ids over the owners
    return np.append(np.mean(ids % 2) > 0.5, ids)


# 2. A balanced step (the paper's Algorithm 1; `fsdata/balance/`) ------------------------------------------------------
# Samples move inside a global batch and never between steps. So the gradient stays a sum over the same samples.
LINEAR, QUADRATIC = 4 * D, 1  # cost of an event (projections) and of a pair of events (attention): section 4
ROUNDS, PARTNERS, SWAPS, SLACK = 24, 4, 64, 1e-5  # fsdata's: bounds on the search, and what counts as balanced


def balance(cost: np.ndarray, ranks: int) -> np.ndarray:
    """int64 [N], the rank of every sample: zig-zag by cost, then swaps. It is fsdata's method "fbs+swap".

    The zig-zag gives every rank N / W samples and a few percent of waiting; swaps keep the first and remove the second.
    """
    order, there = np.argsort(-cost, kind="stable"), np.arange(ranks)
    rank = np.empty_like(order)
    rank[order] = np.resize(np.concatenate([there, there[::-1]]), len(order))  # ranks 0 ... W-1, W-1 ... 0, 0 ... (FBS)
    samples = [order[rank[order] == each].tolist() for each in range(ranks)]  # of each rank, by descending cost
    for _ in range(ROUNDS):
        if not swap_round(cost, samples, target=max(int(cost.sum()), 1) / ranks):
            break
    for each, of_rank in enumerate(samples):
        rank[of_rank] = each
    return rank


def swap_round(cost: np.ndarray, samples: list[list[int]], target: float) -> int:
    """Pair the most loaded rank with the least loaded one, and so on inwards; change `samples` in place.

    Every swap lowers the larger load of its pair, so a plan never gets worse. Returns the number of swaps.
    """
    load = np.array([cost[of_rank].sum() for of_rank in samples])
    by_load = np.argsort(load / target, kind="stable")
    ceiling = target * (1 + SLACK)
    swaps = first = 0  # the ranks before `first` have what they need
    for last in range(len(load) - 1, 0, -1):
        giver, at, failed = by_load[last], first, 0
        left = SWAPS + len(samples[giver])
        while at < last and left and load[giver] > ceiling:
            taker = by_load[at]
            if load[taker] < target:
                pair = find_swap(cost[samples[giver]], cost[samples[taker]], target, ceiling)
                if pair is None:
                    at, failed = at + 1, failed + 1
                    if failed == PARTNERS and last < len(load) - 1:
                        break  # only the most loaded rank is worth trying all others
                    continue
                give, back = samples[giver].pop(pair[0]), samples[taker].pop(pair[1])
                insort(samples[giver], back, key=(-cost).__getitem__)
                insort(samples[taker], give, key=(-cost).__getitem__)
                load[[giver, taker]] = cost[samples[giver]].sum(), cost[samples[taker]].sum()
                swaps, left = swaps + 1, left - 1
                if target - load[taker] > ceiling - target:
                    continue  # the taker is still below its target: the same pair may swap again
            first += first == at
            at += 1
    return swaps


def find_swap(gives: np.ndarray, takes: np.ndarray, target: float, ceiling: float) -> tuple[int, int] | None:
    """The positions of two samples to swap, in two ranks whose costs are given by descending cost.

    The least expensive pair that brings the giver below the ceiling and leaves the taker there, or else the pair that
    is nearest to it. Inexpensive samples are short, so little data moves.
    """
    over, room = gives.sum() - ceiling, ceiling - takes.sum()
    least = int(over if over <= room else target - takes.sum()) + 1
    others = []
    for i in range(len(gives) - 1, -1, -1):
        enough = np.searchsorted(-takes, least - gives[i])  # the smallest gain of this sample that is enough
        for k in range(max(enough - 1, 0), min(enough + 1, len(takes))):
            gain = gives[i] - takes[k]
            if 0 < gain < gives.sum() - takes.sum():  # a larger gain would make the taker as loaded as the giver is
                if least <= gain <= int(room):
                    return i, k
                others.append((abs(gain - least), i, k))
    return min(others, key=lambda other: other[0])[1:] if others else None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The B samples of a step on this rank. Histories are jagged: one after the other, without padding."""

    samples: np.ndarray  # int64 [B], their numbers
    labels: Tensor  # float [B]
    lengths: list[int]  # [B]
    ids: Tensor  # int64 [n]
    straggler: list[float]  # 1 - mean / max of the ranks' costs (Fig. 2), as the samples were read and as balanced


def balanced_batch(seed: int, position: int) -> Batch:
    """This rank's part of a step. Blocks for two exchanges, which fsdata makes in a prefetch thread."""
    ranks, me = dist.get_world_size(), dist.get_rank()
    numbers = global_batch(seed, position)
    home = np.arange(N) * ranks // N  # the rank that reads each sample
    read = [read_sample(number) for number in numbers[home == me].tolist()]

    # Stage I, an all-gather: every rank gets all lengths, in the order (home, row), and computes the same plan.
    own = torch.tensor([len(sample) - 1 for sample in read])
    lengths = all_gather(own, np.bincount(home, minlength=ranks).tolist()).numpy()
    cost = lengths * (LINEAR + QUADRATIC * lengths)  # integers: sums of floats may differ between machines
    rank = balance(cost, ranks)

    # Stage III: one all-to-all moves whole samples. They are jagged, but all lengths are known: only values travel.
    mine, words = rank == me, 1 + lengths
    sizes = np.zeros((ranks, ranks), np.int64)  # of what travels from each rank to each rank
    np.add.at(sizes, (home, rank), words)
    by_rank = np.argsort(rank[home == me], kind="stable")
    values = torch.from_numpy(np.concatenate([read[row] for row in by_rank]))
    moved = send(values, sizes[me].tolist(), sizes[:, me].tolist())().split(words[mine].tolist())
    loads = np.bincount(home, cost, ranks), np.bincount(rank, cost, ranks)
    return Batch(
        samples=numbers[mine],
        labels=torch.stack([sample[0] for sample in moved]).float(),
        lengths=lengths[mine].tolist(),
        ids=torch.cat([sample[1:] for sample in moved]),
        straggler=[1 - float(load.mean() / load.max()) for load in loads],
    )


# 3. The table (`fscomm/plan/`, `fscomm/exchange/`) --------------------------------------------------------------------
class Route(NamedTuple):
    """Ids of one step that travel together, from this rank to the owners of their rows, and from all ranks to here."""

    asked: Tensor  # int64 [n], positions in the batch of this rank: by owner, then in the order of the batch
    to_owners: list[int]  # [W], how many of them each owner gets
    rows: Tensor  # int64 [m], positions in the shard of this rank: by the rank that asks
    from_ranks: list[int]  # [W]

    def split(self, shared: Tensor) -> "tuple[Route, Route]":
        """The exclusive and the collision rows. shared: bool [m], found by the owner, sent back to those that asked.

        Only the owner sees the ids of all ranks. So a row has one class everywhere, and all its gradients one update.
        """
        asked = send(shared.byte(), self.from_ranks, self.to_owners)().bool()
        return self.part(~asked, ~shared), self.part(asked, shared)

    def part(self, asked: Tensor, served: Tensor) -> "Route":
        to_owners = [int(each.sum()) for each in asked.split(self.to_owners)]
        from_ranks = [int(each.sum()) for each in served.split(self.from_ranks)]
        return Route(self.asked[asked], to_owners, self.rows[served], from_ranks)


class Table:
    """Rows [first, first + block) of a table [R, D], and the sum of mean squares of each, for row-wise Adagrad."""

    def __init__(self, rows: Tensor, squares: Tensor) -> None:
        self.block = -(-len(rows) // dist.get_world_size())
        self.shards = [len(shard) for shard in rows.split(self.block)]
        self.first = self.block * dist.get_rank()
        self.rows = rows[self.first : self.first + self.block].clone()
        self.squares = squares[self.first : self.first + self.block].clone()
        self.link = dist.new_group(backend="gloo")  # small messages of the default group do not queue behind rows

    def ask(self, ids: Tensor) -> Callable[[], Route]:
        """Start to send the ids [n] of a batch to their owners. What is returned blocks until all ids are here."""
        owner, ones = ids // self.block, [1] * dist.get_world_size()
        asked, to_owners = torch.argsort(owner, stable=True), torch.bincount(owner, minlength=len(ones))
        from_ranks = send(to_owners, ones, ones)().tolist()
        arrival = send(ids[asked], to_owners.tolist(), from_ranks, self.link)
        return lambda: Route(asked, to_owners.tolist(), arrival() - self.first, from_ranks)

    def fetch(self, route: Route) -> tuple[Route, Arrival]:
        """Read these rows now, and start to send them to the ranks that asked."""
        return route, send(self.rows[route.rows], route.from_ranks, route.to_owners, self.link)

    def send_back(self, route: Route, gradients: Tensor) -> tuple[Route, Arrival]:
        """Start to send gradients [n, D] to the owners, one for each id: sums on this rank would round differently."""
        return route, send(gradients[route.asked], route.to_owners, route.from_ranks, self.link)

    def update(self, route: Route, gradients: Arrival) -> None:
        """Row-wise Adagrad. Blocks until the gradients are here.

        The gradients of a row are added in the order (rank, position in its batch), whatever other rows are updated
        with it. So two updates of different rows give the bits of one update of all of them.
        """
        rows, which = torch.unique(route.rows, return_inverse=True)
        total = torch.zeros(len(rows), D).index_add_(0, which, gradients())
        self.squares[rows] += total.square().mean(1)
        self.rows[rows] -= LEARNING_RATE * total / (self.squares[rows].sqrt() + EPS)[:, None]


def merged(*fetched: tuple[Route, Arrival]) -> Tensor:
    """[n, D], the row of every id of a batch; autograd begins with it. Blocks until all rows are here."""
    rows = torch.empty(sum(len(route.asked) for route, _ in fetched), D)
    for route, arrival in fetched:
        rows[route.asked] = arrival()
    return rows.requires_grad_()


# 4. The model, and resume ---------------------------------------------------------------------------------------------
# A loop that ended has applied all updates, so its state is that of the plain loop. On the same number of ranks, a job
# that resumes from it is bitwise identical to the job that did not stop. On another number, all steps have the same
# samples in the same order (section 1), but sums over ranks have other parts: losses and tables differ by rounding.


def initial_state(seed: int) -> dict[str, Any]:
    """The state before the first step, the same for any number of ranks."""
    draw = torch.Generator().manual_seed(seed)
    tables = {"table": torch.randn(R, D, generator=draw), "squares": torch.zeros(R)}
    dense = {"attention": torch.randn(D, D, generator=draw) / D, "output": torch.randn(D, generator=draw)}
    return {"version": 1, "seed": seed, "position": 0, **tables, **dense}


class Job:
    """All that is trained, from `initial_state` or from the state of an earlier job."""

    def __init__(self, state: dict[str, Any]) -> None:
        if state["version"] != 1:
            raise ValueError(f"a state of version {state['version']}, but this program reads version 1: train it anew")
        self.seed, self.position = state["seed"], state["position"]
        self.table = Table(state["table"], state["squares"])
        self.dense = {name: state[name].clone().requires_grad_() for name in ("attention", "output")}

    def state(self) -> dict[str, Any]:
        """All that later steps depend on, with the whole table: any number of ranks can shard it again."""
        table, squares = (all_gather(shard, self.table.shards) for shard in (self.table.rows, self.table.squares))
        dense = {name: weight.detach().clone() for name, weight in self.dense.items()}
        return {"version": 1, "seed": self.seed, "position": self.position, "table": table, "squares": squares, **dense}

    def batches(self, steps: int) -> Iterator[Batch]:
        """The next steps, each balanced when it is asked for."""
        return (balanced_batch(self.seed, position) for position in range(self.position, self.position + steps))

    def loss(self, batch: Batch, rows: Tensor) -> Tensor:
        """This rank's part of the mean loss of the global batch. rows: [n, D]."""
        pooled = []
        for x in rows.split(batch.lengths):  # [L, D]; all pairs of events: this is why costs are quadratic
            weights = torch.softmax(x @ self.dense["attention"] @ x.T / D**0.5, dim=1)
            pooled.append((weights @ x).mean(0))
        logits = torch.stack(pooled) @ self.dense["output"]
        return F.binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum") / N

    def update_dense(self, loss: Tensor) -> float:
        """SGD with the gradients of all ranks. Blocks for one all-reduce. Returns the loss of the global batch."""
        for weight in self.dense.values():
            dist.all_reduce(weight.grad)
            weight.data -= LEARNING_RATE * weight.grad
            weight.grad = None
        dist.all_reduce(total := loss.detach().clone())
        self.position += 1
        return float(total)


# 5. Two loops (the paper's Algorithm 2; `fscomm/engine/`) -------------------------------------------------------------
Step = tuple[Batch, float, float]  # its loss, and the share of this rank's ids whose row the step before uses, too
NO_BATCH = Batch(samples=np.empty(0), labels=torch.empty(0), lengths=[], ids=torch.empty(0).long(), straggler=[])


def plain(job: Job, steps: int) -> Iterator[Step]:
    """The definition. All communication is exposed: nothing is computed while ids, rows and gradients travel."""
    for batch in job.batches(steps):
        route = job.table.ask(batch.ids)()
        rows = merged(job.table.fetch(route))
        loss = job.loss(batch, rows)
        loss.backward()
        job.table.update(*job.table.send_back(route, rows.grad))
        yield batch, job.update_dense(loss), 0.0


def prioritized(job: Job, steps: int) -> Iterator[Step]:
    """The same bits, while most data travels behind the computation of step n:

        computes   forward of n                            backward of n           -
        travels    exclusive gradients of n-1, ids of n+1  exclusive rows of n+1   collision gradients of n, then rows

    The law: two accesses to one row, of which one is an update, happen in the order of the plain loop. An exclusive row
    of step n+1, which no rank uses in step n, is read while n runs: all updates up to step n-1 are applied by then, and
    those of n do not touch it. A collision row, which both steps use, is read after its update by n, for which its
    gradients go first; all other gradients of n wait until n+1 runs, which does not read their rows.
    """
    table, batches = job.table, chain(job.batches(steps), [NO_BATCH])
    batch, nothing = next(batches), table.ask(NO_BATCH.ids)()
    late = table.send_back(nothing, torch.empty(0, D))  # no step before, so no gradients of it
    route = table.ask(batch.ids)()
    exclusive, collision = table.fetch(route), table.fetch(nothing)  # and no rows that it uses, too
    for following in batches:
        rows = merged(exclusive, collision)
        share = len(collision[0].asked) / len(batch.ids)
        upcoming = table.ask(following.ids)
        loss = job.loss(batch, rows)

        table.update(*late)  # step n does not use these rows, but n+1 may: before the next fetch
        next_route = upcoming()
        patient, urgent = route.split(torch.isin(route.rows, next_route.rows))
        early, after_update = next_route.split(torch.isin(next_route.rows, route.rows))
        exclusive = table.fetch(early)
        loss.backward()

        # Exposed: what both steps use. The gradients of all other rows are sent after it.
        table.update(*table.send_back(urgent, rows.grad))
        collision = table.fetch(after_update)
        total = job.update_dense(loss)
        late = table.send_back(patient, rows.grad)
        yield batch, total, share
        batch, route = following, next_route
    table.update(*late)


# 6. The program -------------------------------------------------------------------------------------------------------
def train(loop: Callable[[Job, int], Iterator[Step]], state: dict[str, Any], steps: int) -> tuple[list[Step], dict]:
    """Some steps from a state on, and the state after them."""
    job = Job(state)
    return list(loop(job, steps)), job.state()


def verdict(one: tuple[list[Step], dict], other: tuple[list[Step], dict]) -> str:
    equal = [loss for _, loss, _ in one[0]] == [loss for _, loss, _ in other[0]]
    equal &= all(map(np.array_equal, one[1].values(), other[1].values()))
    return "bitwise identical" if equal else "DIFFERENT"


def main(rank: int, ranks: int, init_method: str) -> None:
    """Train plainly, with prioritized communication, and with a stop half-way."""
    torch.set_num_threads(1)  # ranks share the cores of a machine
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=ranks)
    start, half = initial_state(seed=0), STEPS // 2
    expected = train(plain, start, STEPS)
    steps, final = train(prioritized, start, STEPS)
    first, stopped = train(prioritized, start, half)
    second, resumed = train(prioritized, stopped, STEPS - half)
    if rank == 0:
        print(f"{ranks} ranks\nstep  straggler %: as read  balanced  collision %    loss")
        for number, (batch, loss, collision) in enumerate(steps):
            print(f"{number:4}{batch.straggler[0]:22.1%}{batch.straggler[1]:10.2%}{collision:13.1%}{loss:8.4f}")
        print("prioritized:", verdict((steps, final), expected), "to the plain loop")
        print(f"resumed after {half} steps:", verdict((steps, final), (first + second, resumed)), "to no stop")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:  # set by torchrun
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")
    else:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(main, args=(2, f"file://{folder}/store"), nprocs=2)
