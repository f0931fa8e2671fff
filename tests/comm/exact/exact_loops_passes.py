"""Loops whose forwards, backwards and steps do not come in turn, or not for what was announced."""

from exact import Run
from exact_registry import Loops

loop = Loops()


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
def no_sync(run: Run) -> None:
    with run.enable() as comm:
        run.optimizer.zero_grad()
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step % 2 == 0:
                with run.ddp.no_sync():
                    run.loss(step, batch).backward()
            else:
                run.loss(step, batch).backward()
                run.set_rate(step)
                run.optimizer.step()
                run.optimizer.zero_grad()


@loop
def rate_set_elsewhere(run: Run) -> None:
    """The learning rate is set before forward, before backward or before the step, and pushed at other times."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step % 4 == 3:
                run.set_rate(step)
            run.optimizer.zero_grad()
            if step % 4 == 0:
                run.set_rate(step)
            loss = run.loss(step, batch)
            if step % 4 == 1:
                run.set_rate(step)
                run.optimizer.zero_grad()
            loss.backward()
            if step % 4 == 2:
                run.set_rate(step)
            run.optimizer.step()


@loop
def without_backward(run: Run) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step in (2, 5, 6):
                run.loss(step, batch)
            else:
                run.train(step, batch)


@loop
def without_forward(run: Run) -> None:
    """Batches that are taken and thrown away, as by a loop that skips bad ones on all ranks."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step not in (1, 4, 5):
                run.train(step, batch)


@loop
def two_steps_in_three_without_forward(run: Run) -> None:
    """Updates may still be under way when rows of a batch two or three steps later are asked for."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step % 3 == 0:
                run.train(step, batch)


@loop
def two_forwards_one_backward(run: Run) -> None:
    """Two batches go forward, the sum of their losses backward."""
    with run.enable() as comm:
        kept = None
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            loss = run.loss(step, batch)
            if step % 4 == 2:
                kept = loss
                continue
            (loss if kept is None else loss + kept).backward()
            kept = None
            run.optimizer.step()


@loop
def same_batch_twice(run: Run) -> None:
    """Two optimizer steps on one batch."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader(0, 5))):
            run.train(step, batch)
            if step % 2:
                run.train(100 + step, batch)


@loop
def other_features(run: Run) -> None:
    """At some steps the model gets other ids than the loader announced."""
    strange = run.loader(50, 60)
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, strange[step] if step in (2, 5) else batch)
