"""Training loops as users write them; each is run with and without fscomm and must give the same bits.

A loop takes a `Run` and may use `run.enable()`, `run.loader()`, the model and the optimizer. It records what a user
could look at. `LOOPS` names them all. What a loop does inside one block with forwards, backwards and states, in any
order, is played by `programs.py`; here are blocks, loaders, and what people put around a step.
"""

import copy
import itertools
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from exact import Loop, Run, build_again, flat, new_run, raw_state
from exact_model import RATE, Batch
from patience import PATIENCE_S
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

LOOPS: dict[str, Loop] = {}


def loop(function: Loop) -> Loop:
    LOOPS[function.__name__] = function
    return function


@loop
def base(run: Run) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)


# Blocks: how they begin, follow each other and are left.


@loop
def epochs(run: Run) -> None:
    """Two blocks with loaders one after the other, of no batch, too, and one look-ahead of which loops take a part."""
    count = itertools.count()
    for block in range(2):
        with run.enable() as comm:
            for epoch, batches in enumerate((3, 0, 1, 2)):
                for batch in comm.lookahead(run.loader(block, block + batches)):
                    run.train(next(count), batch)
                run.record_raw(f"after epoch {block}.{epoch}")
            again = run.loader() if run.mode == "plain" else comm.lookahead(run.loader())
            for _ in range(2):
                for batch in itertools.islice(again, 3):
                    run.train(next(count), batch)
        run.record_raw(f"after block {block}")


@loop
def left_early(run: Run) -> None:
    """By break; the block's end completes everything. Training goes on with the batch that was fetched ahead."""
    rest = iter(run.loader())
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(rest)):
            run.train(step, batch)
            if step == 3:
                break
    run.record_raw("after the block")
    if comm.unconsumed is not None:
        rest = itertools.chain([comm.unconsumed], rest)
    count = 0
    for step, batch in enumerate(rest, 4):
        run.train(step, batch)
        count += 1
    assert count == run.steps - 4


@loop
def exceptions(run: Run) -> None:
    """Of the user, of backward on all ranks, of the loader: each leaves the block unchanged, and nothing undone."""

    def refuse(_: torch.Tensor) -> None:
        raise KeyError("in backward")

    def fails(run: Run, step: int, batch: Batch) -> None:
        run.train(step, batch)
        if step % 10 == 3:
            raise KeyError("the user's own")

    def fails_in_backward(run: Run, step: int, batch: Batch) -> None:
        loss = run.loss(step, batch)
        if step % 10 == 3:
            loss.register_hook(refuse)
        loss.backward()

    def failing_loader() -> Iterator[Batch]:
        yield from run.loader(0, 3)
        raise KeyError("disk")

    def block(number: int, train: Callable[[Run, int, Batch], None], loader: Iterable[Batch]) -> None:
        with run.enable() as comm:
            for step, batch in enumerate(comm.lookahead(loader), 10 * number):
                train(run, step, batch)

    of_user, of_backward = (fails, run.loader()), (fails_in_backward, run.loader())
    of_loader = Run.train, failing_loader()
    for number, how in enumerate([of_user, of_backward, of_loader]):
        with pytest.raises(KeyError, match=["the user's own", "in backward", "disk"][number]):
            block(number, *how)
        run.record_raw(f"after {number}")
        run.train(10 * number + 9, run.loader(9, 10)[0])


@loop
def second_model(run: Run) -> None:
    """Two models, each in a block of its own, nested, on the same batches."""
    other = build_again(run)
    with run.enable() as comm, other.enable() as also:
        ahead = zip(comm.lookahead(run.loader()), also.lookahead(other.loader(1, run.steps + 1)), strict=True)
        for step, (mine, theirs) in enumerate(ahead):
            run.train(step, mine)
            other.train(step, theirs)
    run.record("other", raw_state(other.model, other.optimizer))


# Loaders: several, none, and such as draw random numbers.


@loop
def without_lookahead(run: Run) -> None:
    with run.enable():
        for step, batch in enumerate(run.loader()):
            run.train(step, batch)


@loop
def evaluation_while_the_training_loop_waits(run: Run) -> None:
    """Each has a look-ahead of its own."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step % 3 == 1:
                with torch.no_grad():
                    for i, other in enumerate(comm.lookahead(run.loader(40, 43))):
                        run.record(f"evaluated {step} {i}", run.model(other))


@loop
def two_loaders_in_turn(run: Run) -> None:
    with run.enable() as comm:
        one, other = (iter(comm.lookahead(run.loader(start, start + 12))) for start in (0, 20))
        for step in range(14):
            run.train(step, next(other if step % 3 == 2 else one))


@loop
def microbatches_in_one_lookahead(run: Run) -> None:
    """Three batches are pulled together. They have a backward each before the one step, or one for all."""
    run.options["calls"] = 3
    with run.enable() as comm:
        for step, three in enumerate(comm.lookahead(zip(*[iter(run.loader(0, 15))] * 3, strict=True))):
            run.optimizer.zero_grad()
            losses = []
            for number, batch in enumerate(three):
                losses.append(run.loss(f"{step} {number}", batch) / 3)
                if step % 2:
                    losses.pop().backward()
            if losses:
                sum(losses).backward()  # type: ignore[union-attr]
            run.optimizer.step()


@loop
def drawing_on_one_rank(run: Run) -> None:
    """Its loader and the training step draw from the same random numbers."""

    def drawn() -> Iterator[Batch]:
        for batch in run.loader():
            batch.weight = torch.rand(len(batch.weight))
            yield batch

    _train_with_dropout(run, drawn() if run.rank == 0 else run.loader())


@loop
def dropout(run: Run) -> None:
    """Only the training step draws."""
    _train_with_dropout(run, run.loader())


@loop
def batches_in_memory(run: Run) -> None:
    """Shuffled without end, while the training step draws, too; and so that one comes twice in a row."""
    loaded = run.loader(0, 3)
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead([loaded[i] for i in (0, 1, 1, 2, 2, 2, 0)])):
            run.train(step + 100, batch)

    def shuffled() -> Iterator[Batch]:
        while True:
            yield from DataLoader(loaded, batch_size=None, shuffle=True)

    _train_with_dropout(run, itertools.islice(shuffled(), 8))


def _train_with_dropout(run: Run, loader: Any) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(loader)):
            run.set_rate(step)
            run.optimizer.zero_grad()
            (run.loss(step, batch) * torch.rand(())).backward()
            run.optimizer.step()


# The state is read, and the model evaluated, in mid-run.


@loop
def state_dict_everywhere(run: Run) -> None:
    """Of model and optimizer, between any two parts of a step."""

    def look(part: str, step: int) -> None:
        if step in (2, 3, 6):
            run.record(f"model, {part} {step}", run.model.state_dict())
            run.record(f"optimizer, {part} {step}", run.optimizer.state_dict())
            run.record_raw(f"raw, {part} {step}")

    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.set_rate(step)
            run.optimizer.zero_grad()
            loss = run.loss(step, batch)
            look("between forward and backward", step)
            loss.backward()
            look("between backward and step", step)
            run.optimizer.step()
            look("after", step)


@loop
def optimizer_state_dict_first(run: Run) -> None:
    """The fused optimizer's state aliases memory of the lookups: it must be complete when it is asked first.

    What the user puts into that state stays, in the block and after it.
    """
    parts = _parts(run.model.fused_optimizer)
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step == 2:
                run.record("optimizer", run.optimizer.state_dict())
                run.record("model", run.model.state_dict())
            if step == 4:
                run.record("fused", run.model.fused_optimizer.state_dict())
            if step == 5:
                run.record("sharded module", run.model.module.embeddings.state_dict())
            if step == 6:
                run.record("inner", run.model.module.state_dict())
                for part in parts:
                    part.state["put there by the user"] = {"step": torch.tensor(step)}
    run.record("put there", [part.state.pop("put there by the user") for part in parts])  # TorchRec cannot save it


def _states(run: Run) -> list[Any]:
    """Of the fused optimizers, for every table."""
    return [state for part in _parts(run.model.fused_optimizer) for state in part.state.values()]


def _parts(optimizer: Any) -> list[Any]:
    """The optimizers that others are combined of."""
    combined = getattr(optimizer, "optimizers", None)
    return [optimizer] if combined is None else [each for _, part in combined for each in _parts(part)]


@loop
def evaluation(run: Run) -> None:
    """Of the batch about to be trained on, of the one just trained on, of other data; with gradients, too."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step == 3:
                with torch.no_grad():
                    run.record("before", run.model(batch))
            run.train(step, batch)
            run.model.eval()
            if step in (1, 2, 5):
                with torch.no_grad():
                    for number, other in enumerate([batch, *run.loader(70, 72)]):
                        run.record(f"eval {step}.{number}", run.model(other))
            if step == 6:
                run.record("with gradients", run.model(batch))
            run.model.train()


@loop
def read_by_another_thread(run: Run) -> None:
    """As an asynchronous checkpoint does: all the time, while the training thread goes on."""
    run.set_rate(0)  # adds an entry to the optimizer's state, which nobody may read meanwhile
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool, run.enable() as comm:

        def read() -> None:
            while not over.is_set():
                for action in (comm.flush, run.model.state_dict, run.model.fused_optimizer.state_dict):
                    action()

        reader = pool.submit(read)
        try:
            for step, batch in enumerate(comm.lookahead(run.loader())):
                run.train(step, batch)
        finally:
            over.set()
        reader.result(PATIENCE_S)


def _some_table(run: Run) -> torch.Tensor:
    """One of this rank; zeros where it has none."""
    return next(iter(run.tables().values()), torch.zeros(1, 1))


@loop
def tables_read_by_whatever_looks_at_them(run: Run) -> None:
    """By what was taken before the block, at its beginning, and in every step; between any two parts of a step."""
    table = _some_table(run)
    average = {name: each.detach().clone() for name, each in run.model.named_parameters()}
    early = [run.model.state_dict(), _states(run), [table.data, table.detach().T]]

    def look(when: str) -> None:
        now = dict(run.model.named_parameters())
        run.record(f"parameters, {when}", now)
        run.record(f"views, {when}", [table[0], table.data.norm(), torch.stack([*table]), *early[2]])
        run.record(f"copies, {when}", [copy.deepcopy(table), pickle.loads(pickle.dumps(table.data)), table.tolist()])
        run.record(f"kept, {when}", [*early, *kept])
        run.record(f"numpy, {when}", torch.from_numpy(table.detach().numpy().copy()))
        with torch.no_grad():
            for name, mean in average.items():
                mean.lerp_(now[name], 0.25)

    with run.enable() as comm:
        kept = [run.model.state_dict(), table.detach(), _states(run)]
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.set_rate(step)
            run.optimizer.zero_grad()
            loss = run.loss(step, batch)
            if step % 3 == 1:
                look(f"{step} between forward and backward")
            loss.backward()
            if step % 2:
                look(f"{step} between backward and step")
            run.optimizer.step()
            if step % 3:
                look(f"{step} after")
        run.record("memory", [each.data_ptr() == table.data_ptr() for each in (kept[1], early[2][0])])
    look("the end")
    run.record("classes", [type(each).__qualname__ + type(each).__module__ for each in (table, kept[1], early[2][0])])


@loop
def tables_changed_by_whatever_reaches_them(run: Run) -> None:
    """Weights are clipped, as some do after every step; by parameters, by views, by what `state_dict` gave."""
    given = run.model.state_dict()
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            with torch.no_grad():
                for number, (name, table) in enumerate(run.tables().items()):
                    (shard, *_) = given[name].local_shards()
                    view = [table, table.data, table.detach()[1:], shard.tensor][(number + step) % 4]
                    view.clamp_(-0.2, 0.2)
                    torch.add(view, 0.01 * step, out=view)


@loop
def tables_held_by_numpy(run: Run) -> None:
    """Which shows them as they are now, and may change them at any time. From the third step to the sixth."""
    with run.enable() as comm:
        array = None
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step == 2:
                array = _some_table(run).detach().numpy()
            if array is not None:
                run.record(f"array {step}", torch.from_numpy(array.copy()))
                array *= 1 + step / 8
            if step == 5:
                array = None


# What people put around a step.


@loop
def accumulation(run: Run) -> None:
    """Dense gradients add up over three batches; the tables are updated in every backward."""
    with run.enable() as comm:
        run.optimizer.zero_grad()
        for step, batch in enumerate(comm.lookahead(run.loader())):
            (run.loss(step, batch) / 3).backward()
            if step % 3 == 2:
                run.set_rate(step)
                run.optimizer.step()
                run.optimizer.zero_grad()


@loop
def without_backward(run: Run) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step in (2, 5, 6):
                run.loss(step, batch)
            else:
                run.train(step, batch)


@loop
def last_backward_after_the_block(run: Run) -> None:
    """The thread that runs it sends the gradients. The loop is left early: rows are shared with the batch after it."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.set_rate(step)
            run.optimizer.zero_grad()
            loss = run.loss(step, batch)
            if step == run.steps - 2:
                break
            loss.backward()
            run.optimizer.step()
    loss.backward()
    run.optimizer.step()


@loop
def two_steps_in_three_without_forward(run: Run) -> None:
    """Updates may still be under way when rows of a batch two or three steps later are asked for."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step % 3 == 0:
                run.train(step, batch)


@loop
def next_before_backward(run: Run) -> None:
    """The loop asks for a batch while the one before is between forward and backward."""
    with run.enable() as comm:
        batches = iter(comm.lookahead(run.loader()))
        batch = next(batches, None)
        step = 0
        while batch is not None:
            run.optimizer.zero_grad()
            loss = run.loss(step, batch)
            batch = next(batches, None)
            loss.backward()
            run.optimizer.step()
            step += 1


@loop
def scaled_and_clipped(run: Run) -> None:
    """A GradScaler, which skips the steps of dense weights whose gradients overflow; tables have been updated then.

    Gradients of dense weights are clipped to a share of the norm of what the tables hold after backward.
    """
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    dense = dict(run.optimizer.optimizers)["dense"]
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            scaler.scale(run.loss(step, batch)).backward()
            if step % 3 == 1:
                next(run.model.parameters()).grad.fill_(torch.inf)
            scaler.unscale_(dense)
            norm = sum(float(part.norm()) for part in _tensors(flat(run.model.state_dict())))
            gradients = [each for each in run.model.parameters() if each.grad is not None]
            run.record(f"norm {step}", torch.nn.utils.clip_grad_norm_(gradients, 0.001 * norm).nan_to_num(-1))
            scaler.step(dense)
            scaler.update()
            run.record(f"scale {step}", scaler.get_scale())


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [part for each in parts for part in _tensors(each)]


@loop
def unused_parameters_found(run: Run) -> None:
    """DDP looks for the parameters that a step did not use."""
    other = new_run(run.rank, run.size, run.config.but(finds_unused=True), run.mode, run.options)
    with other.enable() as comm:
        for step, batch in enumerate(comm.lookahead(other.loader())):
            if step % 3 == 2:
                batch.extra["unused"] = ("s0",)
            other.train(step, batch)
    _record_all(run, other)


@loop
def dense_weights_sharded(run: Run) -> None:
    """FSDP2 has a part of the dense weights; DDP none."""
    other = new_run(run.rank, run.size, run.config.but(data_parallel=False), run.mode, run.options)
    hidden = other.model.module.hidden
    fully_shard(hidden, mesh=init_device_mesh("cpu", (run.size,)))
    optimizer = torch.optim.SGD(hidden.parameters(), lr=RATE)
    other.train(90, other.loader(90, 91)[0])  # FSDP2 registers its own hooks in the first forward
    with other.enable() as comm:
        for step, batch in enumerate(comm.lookahead(other.loader())):
            other.train(step, batch)
            optimizer.step()
            optimizer.zero_grad()
    _record_all(run, other)


def _record_all(run: Run, other: Run) -> None:
    run.log.update(other.log)
    run.record("other", other.model.state_dict())
    run.reports += other.reports


@loop
def dense_part_compiled(run: Run) -> None:
    torch._dynamo.reset()
    run.model.module.hidden.compile(backend="eager")
    base(run)
