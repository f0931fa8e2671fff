"""Training loops as users write them; each is run with and without fscomm and must give the same bits.

A loop takes a `Run` and may use `run.enable()`, `run.loader()`, the model and the optimizer. It records what a user
could look at. `LOOPS` names them all. They are those that no program of `programs.py` can say: with several batches in
a step, several models, threads, and what people put around a step.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from exact import Loop, Run, new_run, parts_of, raw_state
from exact_model import RATE
from patience import PATIENCE_S
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

LOOPS: dict[str, Loop] = {}


def loop(function: Loop) -> Loop:
    LOOPS[function.__name__] = function
    return function


@loop
def base(run: Run) -> None:
    run.train_all()


@loop
def second_model(run: Run) -> None:
    """Two models, each in a block of its own, nested, on the same batches."""
    other = new_run(run.rank, run.size, run.config, run.mode, run.options)
    with run.enable() as comm, other.enable() as also:
        ahead = zip(comm.lookahead(run.loader()), also.lookahead(other.loader(1, run.steps + 1)), strict=True)
        for step, (mine, theirs) in enumerate(ahead):
            run.train(step, mine)
            other.train(step, theirs)
    run.record("other", raw_state(other.model, other.optimizer))


@loop
def without_lookahead(run: Run) -> None:
    with run.enable():
        for step, batch in enumerate(run.loader()):
            run.train(step, batch)


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
def state_put_there_by_the_user(run: Run) -> None:
    """What the user puts into the fused optimizer's state stays, in the block and after it."""
    parts = parts_of(run.model.fused_optimizer)
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step == 3:
                for part in parts:
                    part.state["put there by the user"] = {"step": torch.tensor(step)}
    run.record("put there", [part.state.pop("put there by the user") for part in parts])  # TorchRec cannot save it


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


@loop
def scaled(run: Run) -> None:
    """A GradScaler, which skips the steps of dense weights whose gradients overflow; tables have been updated then."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    dense = dict(run.optimizer.optimizers)["dense"]
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            scaler.scale(run.loss(step, batch)).backward()
            if step % 3 == 1:
                next(run.model.parameters()).grad.fill_(torch.inf)
            scaler.step(dense)
            scaler.update()
            run.record(f"scale {step}", scaler.get_scale())


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
    run.log.update(other.log)
    run.record("other", other.model.state_dict())
    run.reports += other.reports
