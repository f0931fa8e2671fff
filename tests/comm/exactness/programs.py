"""Random training programs: what a user's loop may do, in any order, as a list of operations.

`play(operations)` gives a loop for `exact.compare`. Every operation makes sense in every state (what is impossible is
skipped), so that any part of a failing program is a program, too. All ranks play the same operations, but for those
that name a rank. `n` chooses among the variants of an operation.

Losses that a forward gave are *held*, until an operation runs backward through them, in any order.
"""

import contextlib
import copy
import itertools
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from exact import Loop, Run, parts_of
from exact_model import AGAIN, DEVICE, ON_CPU, WIDTH, Batch, Config, given_out, ids_of
from hypothesis import assume
from hypothesis import strategies as st
from layouts import LAYOUTS, as_plain_ids, lists_of, of_lists
from odd_tensors import odd_tensors
from prefetchers import lightning
from torch.utils.checkpoint import checkpoint
from torchrec import KeyedJaggedTensor

EPOCH = 9  # batches until a loader ends
HIDDEN = 5  # every so many batches hide their ids
MOST_HELD = 3
VARIANTS = 12
FAILS, REPEATS, SHARES, SHARES_ON_ONE, IN_TURN = 3, 4, 5, 6, 7  # variants of a loop
FAILS_AFTER = 2  # batches
SHORT, LONG = 7, 12  # operations of a program
OUTSIDE = 2  # operations after a block was left, until the next one is entered


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    n: int

    def __repr__(self) -> str:
        return f"{self.name}:{self.n}"


def operations_of(text: str) -> list[Operation]:
    """Words such as "train_next" and "state:2", which say name and `n`."""
    return [Operation(name, int(n or 0)) for name, _, n in (word.partition(":") for word in text.split())]


WARM_UP = operations_of("train_next train_next")  # until features are known, steps run plainly


TERMS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda table: table.pow(2).sum() / 100,
    lambda table: (_query(table) @ table.T).softmax(1).pow(2).sum(),  # tied weights
    lambda table: (_query(table) @ table.detach().T).pow(2).sum() / 100,
    lambda table: torch.nn.functional.embedding(torch.tensor([0, 0], device=DEVICE), table).pow(3).sum() / 100,
    lambda table: table.data.requires_grad_().exp().sum() / 100,
    lambda table: Cubed.apply(table).sum() / 100,
]
COUNTS_WRITES = "adam", "rowwise adam", "lamb", "rowwise lamb"  # kernels whose updates count up a table's version
WRITES: list[Callable[[torch.Tensor, Run], Any]] = [
    lambda part, run: dist.broadcast(part, src=0),
    lambda part, run: dist.scatter(part, [part * 0.5] * run.size if run.rank == 0 else None, src=0),
    lambda part, run: dist.all_reduce(part, op=dist.ReduceOp.MAX),
    lambda part, run: dist._broadcast_coalesced(dist.group.WORLD, [part], 1024, 0),  # type: ignore[attr-defined]
    lambda part, run: dist.all_gather([part, *(part.clone() for _ in range(run.size - 1))], part * 0.5),
    lambda part, run: dist.group.WORLD.broadcast([part]).wait(),  # type: ignore[union-attr]
    lambda part, run: torch.optim.SGD([_with_gradient(part)], lr=0.01, fused=True).step(),
    lambda part, run: torch.ops.programs.halve(part),
    lambda part, run: halve(part),
]
ALIASES: list[Callable[[torch.Tensor], Any]] = [
    lambda table: _put_data(_nothing(table), table),
    lambda table: _nothing(table).set_(table.data),
    lambda table: copy.copy(table.data),
    lambda table: table.data.as_subclass(torch.nn.Parameter),
    lambda table: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(table.data)),
    lambda table: _nothing(table).set_(table.data.untyped_storage(), 0, (WIDTH,)),  # type: ignore[call-overload]
    lambda table: table.data.untyped_storage() and 0.0,
    lambda table: torch.from_numpy(table.detach().cpu().numpy()[:1]),
    lambda table: table.data.T,
]


COPIES: list[Callable[[torch.Tensor], Any]] = [
    lambda table: [table[0], table.data.norm(), torch.stack([*table])],
    lambda table: [copy.deepcopy(table), pickle.loads(pickle.dumps(table.data)), table.tolist()],
    lambda table: torch.from_numpy(table.detach().cpu().numpy().copy()),
    lambda table: torch.zeros_like(table.data).lerp_(table.detach(), 0.25),
]


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(table)
        return table**3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (table,) = ctx.saved_tensors
        return gradient * 3 * table**2


def _query(table: torch.Tensor) -> torch.Tensor:
    return torch.ones(2, table.shape[1], dtype=table.dtype, device=DEVICE, requires_grad=True)


def _with_gradient(part: torch.Tensor) -> torch.Tensor:
    part.grad = torch.ones_like(part)
    return part


def _nothing(table: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=table.dtype, device=DEVICE)


def _put_data(tensor: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    tensor.data = table.detach()
    return tensor


@torch.library.custom_op("programs::halve", mutates_args=["part"], schema="(Tensor(a!) part) -> ()")
def _(part: torch.Tensor) -> None:
    part.mul_(0.5)


@torch.jit.script
def halve(part: torch.Tensor) -> None:
    part.mul_(0.5)


class Player:
    """One run of a program. `log` entries are numbered, so that both runs name them alike."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.comm: Any = None
        self.batch: Batch | None = None
        self.held: list[torch.Tensor] = []
        self._batches: Iterator[Batch] = iter(())
        self._consumed = 0
        self._count = 0
        self._outside = 0
        self._forwards = 0
        self._kept: list[Any] | None = None
        self._aliases: list[Any] = []
        self._handles: list[Any] = []
        self._generator: torch.Generator | None = None  # of loader and step
        self._block = contextlib.ExitStack()

    def play(self, operations: list[Operation]) -> None:
        with contextlib.ExitStack() as last:
            last.callback(lambda: self._block.close())
            self.enter(operations[0].n if operations else 0)
            loads = any(operation.name == "load" for operation in operations)
            for operation in WARM_UP + [Operation("load", 0)] * loads + operations:
                self._count += 1
                getattr(self, operation.name)(operation.n)
                self._outside = 0 if self.comm is not None else self._outside + 1
                if self._outside > OUTSIDE:
                    self.enter()

    def nothing(self, n: int) -> None:
        pass

    # Blocks and batches

    def enter(self, n: int = 0) -> None:
        """Graphs do not cross the ends of a block: updates of those before it are TorchRec's own (see README), and a
        backward pass through those of a block raises after it."""
        if self.comm is None:
            self.held.clear()
            self._block = contextlib.ExitStack()
            self.comm = self._block.enter_context(self.run.enable())
            self.new_loop(n)

    def leave(self, n: int = 0) -> None:
        """At its end, or by an error of the user."""
        if self.comm is not None:
            with contextlib.suppress(_Refused), self._block:
                if n % 3 == 1:
                    raise _Refused
            self.comm, self.batch = None, None
            self.held.clear()
            self.run.record_raw(f"{self._count} left")

    def new_loop(self, n: int = 0) -> None:
        """The loop is left, if there is one, and another one continues with the batch after. In some loops up to three
        batches are in hand besides that which is trained on; or loader and step draw from one generator, on all ranks
        or on one; or every batch comes twice; or the loader fails; or no batch is pulled early."""
        self._aliases.clear()
        self._generator = None
        if self.comm is not None:
            loader: Iterable[Batch] = self._loader(EPOCH)
            if n in (SHARES, SHARES_ON_ONE):
                self._generator = torch.Generator().manual_seed(self._count)
                loader = weighed(loader, self._generator) if n == SHARES or self.run.rank == 0 else loader
            elif n == REPEATS:
                loader = [batch for batch in loader for _ in range(2)]
            elif n == FAILS:
                loader = failing(itertools.islice(loader, FAILS_AFTER))
            device = None if ON_CPU else DEVICE
            batches = iter(self.comm.lookahead(loader, device, early=n != IN_TURN))
            in_hand = max(n - VARIANTS + 4, 0)
            self._batches, self.batch = lightning(batches, in_hand) if in_hand else batches, None

    def next(self, n: int = 0) -> None:
        if self.comm is None:
            (batch,) = self._loader(1)
            self.batch = batch if ON_CPU else batch.to(DEVICE)
            self._consumed += 1
            return
        if self._generator is not None:
            drawn = torch.rand((), generator=self._generator)
            self.run.record(f"{self._count}.{self._consumed} drawn", drawn)
        try:
            self.batch = next(self._batches)
            self._consumed += 1
        except StopIteration:
            self.new_loop()
        except _Refused:
            pass

    def _loader(self, number: int) -> list[Batch]:
        """Now and then a batch, on all ranks or on one, in which fscomm does not find the ids, or those of one call, or
        in which they are somewhere else."""
        batches = self.run.loader(self._consumed, self._consumed + number)
        for i, batch in enumerate(batches, self._consumed):
            self._as_others_do(i, batch)
            if self.run.config.hides and i % HIDDEN == HIDDEN - 1 and (i % 2 or i % self.run.size == self.run.rank):
                call = i // HIDDEN % 3  # whose ids are hidden; those of all calls, if there is no such call
                hidden = {name for name in batch.ids if call == name.endswith(AGAIN)} or set(batch.ids)
                taken = {name: batch.ids.pop(name) for name in hidden}
                if self.run.config.seed // 2 % 2:
                    batch.moved = taken
                else:
                    batch.hidden = {name: _hide(ids) for name, ids in taken.items()}
        return batches

    def _as_others_do(self, i: int, batch: Batch) -> None:
        """Ids in plain tensors of some layout, of which a model makes its KJTs, and tensors of any kind beside them.

        Before them stand others, which are the same in the first batch. Where `fscomm.recipes` is deleted, batches hold
        KJTs: those that a model makes would not be served.
        """
        config = self.run.config
        batch.beside = [make() for make, _ in odd_tensors(config.seed + i)]
        layout = [*LAYOUTS, *[None] * len(LAYOUTS)][config.seed % (2 * len(LAYOUTS))]
        served = ON_CPU and find_spec("fscomm.recipes") is not None
        if layout is not None and not config.weighted and served:
            ids, batch.ids = batch.ids, {}
            for name, kjt in ids.items():
                if config.seed % 3 == 0:
                    batch.ids[f"before {name}"] = as_plain_ids(kjt if i == 0 else reversed_ids(kjt), layout)
                batch.ids[name] = as_plain_ids(kjt, layout)

    # Forwards

    def forward(self, n: int) -> None:
        """On the batch that is held; once more on it; with a part of it unused."""
        self._hold(lambda batch: self._loss(self._varied(batch, n)))

    def next_forward(self, n: int) -> None:
        if len(self.held) < MOST_HELD:
            self.next()
            self.forward(n)

    def foreign(self, n: int) -> None:
        """On another batch, on all ranks or on one."""
        self._hold(lambda _: self._loss(self._strange(n)))

    def module(self, n: int) -> None:
        """One sharded module by itself."""
        self._hold(lambda batch: (self._values(self._module_name(n), batch) ** 2 / 100).sum())

    def recomputed(self, n: int) -> None:
        """One sharded module under activation checkpointing, of either kind."""

        def forward(batch: Batch) -> torch.Tensor:
            name, scale = self._module_name(n // 2), torch.ones(1, device=DEVICE, requires_grad=True)
            values = checkpoint(lambda scale: self._values(name, batch) * scale, scale, use_reentrant=bool(n % 2))
            return (values**2 / 100).sum()

        self._hold(forward)

    def saved_elsewhere(self, n: int) -> None:
        """With hooks on saved tensors, on all ranks or on one. Some return copies, as `save_on_cpu` does on a GPU:
        updates of a copied table are lost."""
        here = n % 2 == 0 or n // 2 % self.run.size == self.run.rank
        hooks = torch.autograd.graph.saved_tensors_hooks
        elsewhere = hooks(torch.clone, lambda tensor: tensor) if n % 5 == 4 else torch.autograd.graph.save_on_cpu()
        with elsewhere if here else contextlib.nullcontext():
            self._hold(self._loss)

    def _hold(self, forward: Callable[[Batch], torch.Tensor]) -> None:
        if self.batch is not None and len(self.held) < MOST_HELD:
            with self._no_sync():
                self.held.append(forward(self.batch))

    def evaluate(self, n: int) -> None:
        batch = self.batch if n % 2 and self.batch is not None else self.run.batch(80 + n)
        with torch.no_grad():
            self.run.record(f"{self._count} evaluated", self.run.model(batch))

    def inspect(self, n: int) -> None:
        """An evaluation as it should be."""
        batch = self.batch if n % 2 and self.batch is not None else self.run.batch(80 + n)
        self.run.model.eval()
        with torch.set_grad_enabled(n % 3 == 0):
            self.run.record(f"{self._count} inspected", self.run.model(batch))
        self.run.model.train()

    # Backwards

    def backward(self, n: int) -> None:
        """Of one held loss."""
        if self.held:
            self._backward(self.held.pop(n % len(self.held)))

    def backward_of_sum(self, n: int) -> None:
        if self.held:
            total = sum(self.held[::-1] if n % 2 else self.held)
            self.held.clear()
            self._backward(total)

    def train_pair(self, n: int) -> None:
        """One backward through two forwards: of two batches, or of one."""
        self.next_forward(n)
        (self.next_forward if n % 3 else self.forward)(n)
        self.backward_of_sum(n)

    def backward_kept(self, n: int) -> None:
        """Of one held loss, whose graph stays."""
        if self.held:
            self._backward(self.held[n % len(self.held)], retain_graph=True)

    def backward_with_graph(self, n: int) -> None:
        """Which gives gradients that can be differentiated; or such a gradient is a part of the loss.

        The former fails in TorchRec's own reduce-scatter, whose backward pass writes into views.
        """
        tables = (table for of_module in self.run.config.modules.values() for table in of_module)
        adds_up = any(table.pooling and table.sharding in ("row", "host", "grid") for table in tables)
        if self.held:
            loss = self.held.pop(n % len(self.held))
            with self._no_sync():
                if n % 2 and not adds_up:
                    loss.backward(create_graph=True)
                else:
                    penalised(self.run, loss).backward()

    def backward_fails(self, n: int) -> None:
        """It raises when some of the tables are updated, and some are not."""
        self.next()
        if self.batch is not None:
            names = list(self.run.config.modules)
            values = [self._values(name, self.batch) for name in (names if n % 2 else names[::-1])]
            values[0].register_hook(_refuse)  # backward comes to the others first
            with contextlib.suppress(_Refused):
                sum((each**2 / 100).sum() for each in values).backward()

    def _backward(self, loss: Any, **options: Any) -> None:
        with self._no_sync():
            loss.backward(**options)

    def drop(self, n: int) -> None:
        if self.held:
            self.held.pop(n % len(self.held))

    # Steps

    def train(self, n: int) -> None:
        """As everybody trains; now and then with the losses that are held."""
        if self.batch is None:
            self.next()
        if self.batch is not None:
            self.run.set_rate(self._count)
            self.run.optimizer.zero_grad()
            loss = self._loss(self._strange(n) if n % 6 == 1 else self._varied(self.batch, n))
            if n % 3 == 2:
                loss = sum(self.held, loss)
                self.held.clear()
            loss.backward()
            self.optimizer_step(n)

    def train_next(self, n: int) -> None:
        self.next()
        self.train(n)

    def train_on(self, n: int) -> None:
        """A few steps of which nothing else is to be said."""
        for _ in range(1 + n % 4):
            self.train_next(0)

    def train_twice(self, n: int) -> None:
        """Two steps on one batch."""
        self.train_next(n)
        self.train(n)

    def optimizer_step(self, n: int) -> None:
        """Dense weights may not change while a graph that saved them is held; the tables' rates may."""
        (self.run.model.fused_optimizer if self.held else self.run.optimizer).step()

    def zero_grad(self, n: int) -> None:
        self.run.optimizer.zero_grad()

    def rate(self, n: int) -> None:
        self.run.set_rate(n)

    # Looking

    def state(self, n: int) -> None:
        """Read on all ranks or on one; of the model or of an optimizer first."""
        if n % 3 == 2 and n % self.run.size != self.run.rank:
            return
        parts = [
            ("model", self.run.model),
            ("optimizer", self.run.optimizer),
            ("fused", self.run.model.fused_optimizer),
        ]
        modules = ("modules", self.run.model.module.embeddings)
        for name, part in [*parts[n % 3 :], *parts[: n % 3], modules]:
            self.run.record(f"{self._count} {name}", part.state_dict())

    def load(self, n: int) -> None:
        """Keep the state the first time, then go back to it; mostly between two steps."""
        if self._kept is None:
            self._kept = [copied(part.state_dict()) for part in (self.run.model, self.run.optimizer)]
        else:
            self.held.clear()  # their graphs have saved what is overwritten
            self.run.model.load_state_dict(copied(self._kept[0]))  # TorchRec changes what it is given
            self.run.optimizer.load_state_dict(copied(self._kept[1]))
            if n % 3:
                self.train_next(0)

    def checkpoint(self, n: int) -> None:
        """By torch.distributed.checkpoint, on all ranks; it may be read back at once."""
        folder = [tempfile.mkdtemp() if self.run.rank == 0 else ""]
        dist.broadcast_object_list(folder)
        state = self.run.model.state_dict()
        dcp.save(state, checkpoint_id=folder[0])
        if n % 2:
            self.held.clear()  # their graphs have saved what is overwritten
            dcp.load(state, checkpoint_id=folder[0])
        dist.barrier()
        if self.run.rank == 0:
            shutil.rmtree(folder[0])

    def flush(self, n: int) -> None:
        if self.comm is not None and (n % 2 or n % self.run.size == self.run.rank):
            self.comm.flush()
            self.run.record_raw(f"{self._count} flushed")

    # Tables as tensors of the program's own

    def table_in_loss(self, n: int) -> None:
        """A loss with a term over a whole table, taken before or after the look-up, on all ranks or on one.

        Autograd saves the table, and reads it in backward, when some of its updates were done.
        """
        tables = self._tables()
        if self.run.config.optimizer in COUNTS_WRITES:
            tables = [table.data for table in tables]  # otherwise torch refuses the backward pass
        here = n % 3 < 2 or n % self.run.size == self.run.rank

        def forward(batch: Batch) -> torch.Tensor:
            terms = [TERMS[(n + i) % len(TERMS)](table) for i, table in enumerate(tables[: 1 + n % 2])] if here else []
            loss = self._loss(batch)
            late = [table.pow(2).sum() / 100 for table in tables[:1]] if here and n % 5 == 4 else []
            return loss + sum(terms) + sum(late)

        self._hold(forward)
        self.run.record(f"{self._count} gradients", [table.grad for table in tables])

    def look(self, n: int) -> None:
        """By what was kept of tables and their optimizer's state, in this block or before it; by views and copies."""
        self.run.record(f"{self._count} parameters", dict(self.run.model.named_parameters()))
        self.run.record(f"{self._count} kept", self._handles)
        self.run.record(f"{self._count} copies", [COPIES[n % len(COPIES)](table) for table in self._tables()[:1]])
        states = [part.state for part in parts_of(self.run.model.fused_optimizer)]
        self._handles = [
            *self._handles[:1],
            [self.run.model.state_dict(), states, [table.T for table in self._tables()]],
        ]

    def change(self, n: int) -> None:
        """Clip and move weights, as some do after every step; by parameters, by views, by what `state_dict` gives."""
        self.held.clear()  # their graphs have saved what is overwritten
        given = self.run.model.state_dict()
        for number, (name, table) in enumerate(self.run.tables().items()):
            shards = given[name].local_shards() if hasattr(given.get(name), "local_shards") else []
            views = [table, table.data, table.detach()[1:], *(shard.tensor for shard in shards)]
            if table.is_floating_point():
                view = views[(number + n) % len(views)]
                with torch.no_grad():
                    view.clamp_(-0.2, 0.2)
                    torch.add(view, 0.01 * n, out=view)

    def write(self, n: int) -> None:
        """By functions to which torch gives tensors without asking their class, on all ranks."""
        tables = [table for table in self._tables() if table.dtype == torch.float32]
        part = tables[n % len(tables)].data.view(-1)[:WIDTH] if tables else torch.zeros(WIDTH, device=DEVICE)
        with torch.no_grad():
            WRITES[n % len(WRITES)](part, self.run)

    def alias(self, n: int) -> None:
        """A tensor over a table, made without an operation on it, or memory that is no tensor; the third drops one."""
        for table in self._tables()[:1]:
            del self._aliases[: len(self._aliases) - 1]
            self._aliases.append(ALIASES[n % len(ALIASES)](table))

    def use_alias(self, n: int) -> None:
        """Read, or written to."""
        for alias in map(torch.as_tensor, self._aliases):
            if n % 2:
                alias.data.mul_(0.75)
            self.run.record(f"{self._count}.{len(self.run.log)} alias", alias)

    # Parts

    def _tables(self) -> list[torch.Tensor]:
        """Without the maps of managed collision."""
        return [table for table in self.run.tables().values() if table.is_floating_point()]

    def _loss(self, batch: Batch) -> torch.Tensor:
        self._forwards += 1
        return self.run.loss(f"{self._count}.{self._forwards}", batch)

    def _strange(self, n: int) -> Batch:
        """Another batch than the one held, on all ranks or on one."""
        elsewhere = self.batch is not None and n // 2 % 2 and n % self.run.size != self.run.rank
        return self.batch if elsewhere else self.run.batch(60 + n)  # type: ignore[return-value]

    def _values(self, module: str, batch: Batch) -> torch.Tensor:
        return given_out(self.run.model.module.embeddings[module](ids_of(batch, module)))

    def _varied(self, batch: Batch, n: int) -> Batch:
        modules = self.run.config.modules
        last = list(modules)[-1]
        features = [feature for table in modules[last] for feature in table.features]
        extra = [
            {},
            {"once": True},
            {"skip": (last,)},
            {"unused": features[:1]},
            {"unused": features},
            {"unused": features},
        ][n % 6]
        return replace(batch, extra=extra)

    def _module_name(self, n: int) -> str:
        names = list(self.run.config.modules)
        return names[n % len(names)]

    def _no_sync(self) -> Any:
        """DDP wants one backward after each forward; all others do without it."""
        return self.run.ddp.no_sync() if hasattr(self.run.ddp, "no_sync") else contextlib.nullcontext()


def weighed(loader: Iterable[Batch], generator: torch.Generator) -> Iterator[Batch]:
    for batch in loader:
        yield replace(batch, weight=batch.weight * (1 + torch.rand((), generator=generator)))


def failing(loader: Iterable[Batch]) -> Iterator[Batch]:
    yield from loader
    raise _Refused


def _hide(ids: Any) -> Callable[[], Any]:
    """In a function, which fscomm does not look into."""
    return lambda: ids


def penalised(run: Run, loss: torch.Tensor) -> torch.Tensor:
    """With the norm of the dense gradients."""
    weights = [each for name, each in run.model.named_parameters() if "embeddings" not in name]
    gradients = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
    return loss + 1e-3 * sum((each**2).sum() for each in gradients if each is not None)


def reversed_ids(kjt: Any) -> KeyedJaggedTensor:
    lists = [(values.flip(0), lengths.flip(0)) for values, lengths in lists_of(kjt)]
    return of_lists(kjt.keys(), lists)


class _Refused(Exception):
    pass


def _refuse(_: torch.Tensor) -> None:
    raise _Refused


def copied(state: Any) -> Any:
    """A copy in which sharded tensors stay sharded."""
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) or hasattr(state, "local_shards") else state


def play(operations: list[Operation]) -> Loop:
    return lambda run: Player(run).play(operations)


WEIGHTS: dict[Callable[..., None], int] = {
    Player.nothing: 1,  # a program that fails shrinks to these
    Player.next: 2,
    Player.forward: 4,
    Player.next_forward: 10,
    Player.train: 3,
    Player.train_twice: 4,
    Player.train_next: 8,
    Player.backward: 6,
    Player.backward_of_sum: 7,
    Player.train_pair: 8,
    Player.backward_kept: 3,
    Player.backward_with_graph: 3,
    Player.backward_fails: 3,
    Player.foreign: 2,
    Player.module: 1,
    Player.recomputed: 1,
    Player.saved_elsewhere: 1,
    Player.evaluate: 1,
    Player.inspect: 1,
    Player.drop: 1,
    Player.optimizer_step: 1,
    Player.zero_grad: 1,
    Player.rate: 1,
    Player.state: 1,
    Player.load: 3,
    Player.checkpoint: 1,
    Player.flush: 1,
    Player.table_in_loss: 3,
    Player.look: 2,
    Player.change: 1,
    Player.write: 2,
    Player.alias: 1,
    Player.use_alias: 2,
    Player.new_loop: 2,
    Player.leave: 2,
}
NAMES = [operation.__name__ for operation, weight in WEIGHTS.items() for _ in range(weight)]


def programs(length: int = SHORT) -> st.SearchStrategy[list[Operation]]:
    operations = st.builds(Operation, st.sampled_from(NAMES), st.integers(0, VARIANTS - 1))
    return st.lists(operations, min_size=length, max_size=length).map(without_nothing)


def without_nothing(operations: list[Operation]) -> list[Operation]:
    return [operation for operation in operations if operation.name != "nothing"]


class Different:
    """Hypothesis plays variations of what it drew before: half of its programs. Here each one is new, until one fails.

    Those are then varied to find the smallest.
    """

    def __init__(self) -> None:
        self._played: set[str] = set()
        self._failed = False

    @contextlib.contextmanager
    def check(self, config: Config, operations: list[Operation]) -> Iterator[None]:
        """Around a program. Rejects a model or a list of operations that was played before."""
        parts = {str(config.modules), str([operation.name for operation in operations])}
        assume(self._failed or parts.isdisjoint(self._played))
        self._played |= parts
        try:
            yield
        except BaseException:
            self._failed = True
            raise
