"""Loops over several loaders, and loaders that draw random numbers."""

from collections.abc import Iterator

import torch
from exact import Run
from exact_model import Batch
from exact_registry import Loops

loop = Loops()


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
def drawing(run: Run) -> None:
    """Loader and training step draw from the same random numbers."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(drawn(run))):
            _train_with_dropout(run, step, batch)


@loop
def dropout(run: Run) -> None:
    """Only the training step draws."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            _train_with_dropout(run, step, batch)


@loop
def drawing_on_one_rank(run: Run) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(drawn(run) if run.rank == 0 else run.loader())):
            _train_with_dropout(run, step, batch)


def drawn(run: Run) -> Iterator[Batch]:
    """The weights of the samples are drawn when a batch is asked for."""
    for batch in run.loader():
        batch.weight = torch.rand(len(batch.weight))
        yield batch


def _train_with_dropout(run: Run, step: int, batch: Batch) -> None:
    run.set_rate(step)
    run.optimizer.zero_grad()
    loss = run.loss(step, batch) * torch.rand(())
    loss.backward()
    run.optimizer.step()
