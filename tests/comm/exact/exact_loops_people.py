"""Loops with what people put around a training step: scalers, clipping, averages of weights, wrappers, compilers."""

import copy
from typing import Any

import torch
from exact import Run, build_again, flat, new_run
from exact_model import RATE
from exact_registry import Loops
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

loop = Loops()


def dense_optimizer(run: Run) -> Any:
    """Of CombinedOptimizer's parts, the one that is not fused into the look-ups."""
    return dict(run.optimizer.optimizers)["dense"]


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
def scaled_losses(run: Run) -> None:
    """A GradScaler, which skips the steps of dense weights whose gradients overflow; tables have been updated then."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    dense = dense_optimizer(run)
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            loss = run.loss(step, batch)
            scaler.scale(loss).backward()
            if step % 3 == 1:
                next(run.model.parameters()).grad.fill_(torch.inf)
            scaler.step(dense)
            scaler.update()
            run.record(f"scale {step}", scaler.get_scale())


@loop
def clipped_by_norms_of_tables(run: Run) -> None:
    """Gradients of dense weights are clipped to a share of the norm of what the tables hold after backward."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            run.loss(step, batch).backward()
            norm = sum(float(part.norm()) for part in _tensors(flat(run.model.state_dict())))
            dense = [each for each in run.model.parameters() if each.grad is not None]
            run.record(f"norm {step}", torch.nn.utils.clip_grad_norm_(dense, 0.001 * norm))
            run.optimizer.step()


@loop
def averaged_weights(run: Run) -> None:
    """A moving average of all weights, tables too, by their state; trained on with the averages at the end."""
    with run.enable() as comm:
        average: dict[str, Any] = {}
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            now = flat(run.model.state_dict())
            for name, value in now.items():
                old = average.setdefault(name, copy.deepcopy(value))
                for mean, part in zip(_tensors(old), _tensors(value), strict=True):
                    mean.mul_(0.9).add_(part, alpha=0.1)
        run.record("averages", average)


@loop
def microbatches(run: Run) -> None:
    """The loader gives batches in two parts, and dense gradients add up over them."""
    with run.enable() as comm:
        pairs = list(zip(run.loader(), run.loader(60, 60 + run.steps), strict=True))
        for step, parts in enumerate(comm.lookahead(pairs)):
            run.optimizer.zero_grad()
            for part, batch in enumerate(parts):
                (run.loss(f"{step}, part {part}", batch) / 2).backward()
            run.optimizer.step()


@loop
def zipped_loaders(run: Run) -> None:
    """Two loaders side by side; the model gets a batch of each in a step."""
    with run.enable() as comm:
        both = zip(comm.lookahead(run.loader()), comm.lookahead(run.loader(30, 30 + run.steps)), strict=True)
        for step, (batch, other) in enumerate(both):
            run.train(step, batch)
            run.train(100 + step, other)


@loop
def zipped_in_one_lookahead(run: Run) -> None:
    """The same with one look-ahead over both, a backward through both forwards: all calls are served."""
    run.options["calls"] = 2
    with run.enable() as comm:
        both = zip(run.loader(), run.loader(30, 30 + run.steps), strict=True)
        for step, (batch, other) in enumerate(comm.lookahead(both)):
            run.set_rate(step)
            run.optimizer.zero_grad()
            (run.loss(f"{step} first", batch) + run.loss(f"{step} second", other)).backward()
            run.optimizer.step()


@loop
def microbatches_in_one_lookahead(run: Run) -> None:
    """Three batches are pulled together; each has a forward and a backward before the one step."""
    run.options["calls"] = 3
    with run.enable() as comm:
        for step, three in enumerate(comm.lookahead(zip(*[iter(run.loader(0, 9))] * 3, strict=True))):
            run.optimizer.zero_grad()
            for number, batch in enumerate(three):
                (run.loss(f"{step} {number}", batch) / 3).backward()
            run.optimizer.step()


@loop
def two_models_in_a_step(run: Run) -> None:
    """A teacher, which is looked up without gradients, beside the model."""
    teacher = build_again(run)
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            with torch.no_grad():
                wanted = teacher.model(batch)
            output = run.model(batch)
            run.record(f"output {step}", output)
            ((output - wanted) ** 2 + (output - batch.target) ** 2).mean().backward()
            run.optimizer.step()


@loop
def unused_parameters_found(run: Run) -> None:
    """DDP looks for the parameters that a step did not use."""
    other = new_run(run.rank, run.size, run.config.but(finds_unused=True), run.mode, run.options)
    with other.enable() as comm:
        for step, batch in enumerate(comm.lookahead(other.loader())):
            if step % 3 == 2:
                batch.extra["unused"] = ("s0",)
            other.train(step, batch)
    run.log.update(other.log)
    run.record("unused", other.model.state_dict())
    run.reports += other.reports


@loop
def schedules(run: Run) -> None:
    """One of torch's schedulers for the dense weights, and the rate of the tables by hand."""
    dense = dense_optimizer(run)
    scheduler = torch.optim.lr_scheduler.LambdaLR(_plain(dense), lambda step: 1 / (1 + step))
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            run.loss(step, batch).backward()
            run.optimizer.step()
            scheduler.step()
            for group in run.model.fused_optimizer.param_groups:
                group["lr"] = RATE / (1 + step)


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
    run.record("sharded", other.model.state_dict())
    run.reports += other.reports


@loop
def dense_part_compiled(run: Run) -> None:
    torch._dynamo.reset()
    run.model.module.hidden.compile(backend="eager")
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)


def _plain(keyed: Any) -> Any:
    """The torch optimizer behind TorchRec's."""
    return keyed._optimizer


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [part for each in value.values() for part in _tensors(each)]
    if isinstance(value, list):
        return [part for each in value for part in _tensors(each)]
    return []
