"""Training loops over stand-in tables, with and without fscomm: whatever they leave must be the same to the bit."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from standin_rows import HOST, Ids, ShardedRows, enabled
from torch import nn
from torch.utils.checkpoint import checkpoint

from fscomm.report.report import Forwards

STEPS, DIM, RATE = 9, 8, 0.05
OPTIMIZERS = ("sgd", "row-wise adagrad")
MODULES: dict[str, dict[str, tuple[int, list[str]]]] = {
    "a": {"r": (40, ["r0", "r1"]), "q": (33, ["q0"])},
    "b": {"s": (25, ["s0"])},
}


@dataclass
class Batch:
    a: Ids
    b: Ids
    target: torch.Tensor

    def to(self, where: torch.device, non_blocking: bool = False) -> "Batch":
        return Batch(self.a.to(where), self.b.to(where), self.target.to(where))


class Model(nn.Module):
    def __init__(self, optimizer: str, where: torch.device) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tables = nn.ModuleDict(
            {name: ShardedRows(tables, DIM, optimizer, RATE, where) for name, tables in MODULES.items()}
        )
        self.dense = nn.Linear(DIM, 1).to(where)

    def forward(self, batch: Batch) -> torch.Tensor:
        return sum(self.look_up(name, batch) for name in MODULES)  # type: ignore[return-value]

    def look_up(self, name: str, batch: Batch) -> torch.Tensor:
        rows = self.tables[name](getattr(batch, name))
        place = torch.arange(len(rows), device=rows.device)
        return self.dense(torch.tanh(rows * (1 + 0.1 * torch.sin(place + 1.0))[:, None])).sum() / 30


class Plainly:
    """In the place of `Comm`."""

    def lookahead(self, loader: Any, device: torch.device | None = None) -> Iterator[Batch]:
        return (batch if device is None else batch.to(device) for batch in loader)

    def flush(self) -> None:
        pass


@dataclass
class Run:
    """mode: "plain", or the transport."""

    mode: str
    model: Model
    where: torch.device
    log: dict[str, torch.Tensor] = field(default_factory=dict)
    served: float = 0.0
    optimizer: Any = None

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.dense.parameters(), lr=RATE)

    @contextlib.contextmanager
    def enable(self) -> Iterator[Any]:
        if self.mode == "plain":
            yield Plainly()
            return
        with enabled(self.model, transport=self.mode) as comm:
            yield comm
        self.served = sum(comm.report().forwards.values(), Forwards()).ids_share

    def loader(self, start: int = 0, stop: int = STEPS) -> list[Batch]:
        rank = dist.get_rank()
        return [batch(rank, step, self.where) for step in range(start, stop)]

    def loss(self, step: int, given: Batch) -> torch.Tensor:
        for tables in self.model.tables.values():
            tables.kernel.learning_rate_tensor.fill_(RATE * (1 + step * 7 % 5 / 4))
        loss = (self.model(given) - given.target) ** 2
        self.log[f"loss {len(self.log)}"] = loss.detach().to(HOST)
        return loss

    def train(self, step: int, given: Batch) -> None:
        self.optimizer.zero_grad()
        self.loss(step, given).backward()
        self.optimizer.step()

    def train_recomputed(self, step: int, given: Batch) -> None:
        """A module is called again behind the update that the same backward pass has brought."""
        anchor = torch.ones((), requires_grad=True, device=self.where)
        beside = checkpoint(lambda scale: self.model.look_up("a", given) * scale, anchor, use_reentrant=True)
        (self.loss(step, given) + beside**2).backward()

    def note_state(self) -> None:
        for name, tables in self.model.tables.items():
            for part in ("weights_dev", "momentum1_dev", "iter"):
                self.log[f"{len(self.log)} {name} {part}"] = getattr(tables.kernel, part).detach().to(HOST).clone()


def batch(rank: int, step: int, where: torch.device) -> Batch:
    draw = torch.Generator().manual_seed(step * 64 + rank)
    parts = []
    samples = int(torch.randint(1, 5, (1,), generator=draw))
    for tables in MODULES.values():
        names = [name for _, features in tables.values() for name in features]
        rows = [rows for rows, features in tables.values() for _ in features]
        sizes = torch.randint(0, 5, (len(names), samples), generator=draw)
        ids = [
            torch.randint(0, most, (int(size.sum()),), generator=draw) for most, size in zip(rows, sizes, strict=True)
        ]
        parts.append(Ids(names, torch.cat(ids), sizes.flatten(), samples))
    return Batch(*parts, torch.rand((), generator=draw)).to(where)


def base(run: Run) -> None:
    with run.enable() as comm:
        for step, given in enumerate(comm.lookahead(run.loader())):
            run.train(step, given)


def everything(run: Run) -> None:
    """What a loop may do, a step each; left early, and again; the last backward comes after the loop."""
    with run.enable() as comm:
        held: list[torch.Tensor] = []
        for step, given in enumerate(comm.lookahead(run.loader(0, 20))):
            match step:
                case 3:
                    run.loss(step, given)  # and no backward
                case 4 | 5:
                    pass  # not even a forward
                case 6:
                    loss = run.loss(step, given)
                    loss.backward(retain_graph=True)
                    (loss * 0.5).backward()
                case 7:
                    held.append(run.loss(step, given))
                case 8:
                    (run.loss(step, given) + held.pop()).backward()
                case 9:
                    run.train(step, given)
                    with torch.no_grad():
                        run.loss(step, run.loader(20, 21)[0])
                case 10:
                    run.train(step, given)
                    comm.flush()
                    run.note_state()
                case 11:
                    run.train(step, run.loader(30, 31)[0])
                case 13:
                    run.train_recomputed(step, given)
                case 16:
                    break
                case _:
                    run.train(step, given)
        for step, given in enumerate(comm.lookahead(run.loader(15, 19)), 17):
            loss = run.loss(step, given)
            if step < 20:
                loss.backward()
        run.note_state()
        loss.backward()


LOOPS: dict[str, Callable[[Run], None]] = {"base": base, "everything": everything}


def trained(loop: str, optimizer: str, mode: str, where: torch.device) -> Run:
    run = Run(mode, Model(optimizer, where), where)
    LOOPS[loop](run)
    run.note_state()
    run.log |= {f"dense {name}": each.detach().to(HOST) for name, each in run.model.dense.named_parameters()}
    return run


def compare(rank: int, size: int, loop: str, optimizer: str, transport: str, device: str) -> tuple[list[str], float]:
    """What differs on this rank from the plain loop, and the share of forwards served."""
    where = torch.device(device)
    plain, served = (trained(loop, optimizer, mode, where) for mode in ("plain", transport))
    assert plain.log.keys() == served.log.keys()
    return [name for name, value in plain.log.items() if not torch.equal(value, served.log[name])], served.served
