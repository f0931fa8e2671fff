"""Loops over loaders and `enable` blocks: how they begin, follow each other and are left."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from exact import Run
from exact_model import Batch
from exact_registry import Loops

loop = Loops()


@loop
def base(run: Run) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)


@loop
def generator_loader(run: Run) -> None:
    """A loader that makes each batch when it is asked for it."""

    def load() -> Iterator[Batch]:
        for step in range(run.steps):
            yield from run.loader(step, step + 1)

    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(load())):
            run.train(step, batch)


@loop
def short_loaders(run: Run) -> None:
    """No batch, one batch, two batches."""
    for start, stop in ((0, 0), (0, 1), (1, 3)):
        with run.enable() as comm:
            for step, batch in enumerate(comm.lookahead(run.loader(start, stop)), start):
                run.train(step, batch)
        run.record_raw(f"after {stop}")


@loop
def epochs(run: Run) -> None:
    """One block, several loaders one after the other."""
    with run.enable() as comm:
        for epoch in range(2):
            for step, batch in enumerate(comm.lookahead(run.loader(0, 4))):
                run.train(10 * epoch + step, batch)
            run.record_raw(f"after epoch {epoch}")


@loop
def two_blocks(run: Run) -> None:
    for start in (0, 4):
        with run.enable() as comm:
            for step, batch in enumerate(comm.lookahead(run.loader(start, start + 4)), start):
                run.train(step, batch)
        run.record_raw(f"after {start}")


@loop
def left_early(run: Run) -> None:
    """Left by break; the block's end completes everything. Trained on without fscomm."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step == 3:
                break
    run.record_raw("after the block")
    for step, batch in enumerate(run.loader(4), 4):
        run.train(step, batch)


@loop
def unconsumed(run: Run) -> None:
    """The batch fetched ahead is not lost to a user who trains on with the same iterator."""
    rest = iter(run.loader())
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(rest)):
            run.train(step, batch)
            if step == 3:
                break
    if comm.unconsumed is not None:
        rest = itertools.chain([comm.unconsumed], rest)
    count = 0
    for step, batch in enumerate(rest, 4):
        run.train(step, batch)
        count += 1
    assert count == run.steps - 4


@loop
def left_between_forward_and_backward(run: Run) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step == 3:
                run.loss(step, batch)
                break
            run.train(step, batch)
    run.record_raw("after the block")
    run.train(9, run.loader(9, 10)[0])


@loop
def exception(run: Run) -> None:
    """An exception leaves the block unchanged and leaves nothing undone."""

    def broken() -> None:
        with run.enable() as comm:
            for step, batch in enumerate(comm.lookahead(run.loader())):
                run.train(step, batch)
                if step == 3:
                    raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        broken()
    run.record_raw("after the block")
    run.train(9, run.loader(9, 10)[0])


@loop
def exception_in_backward(run: Run) -> None:
    """Raised on all ranks by a hook on the output, so before any gradient of an embedding."""

    def refuse(_: torch.Tensor) -> None:
        raise KeyError("in backward")

    def broken() -> None:
        with run.enable() as comm:
            for step, batch in enumerate(comm.lookahead(run.loader())):
                if step == 3:
                    loss = run.loss(step, batch)
                    loss.register_hook(refuse)
                    loss.backward()
                run.train(step, batch)

    with pytest.raises(KeyError, match="in backward"):
        broken()
    run.record_raw("after the block")


@loop
def backward_after_the_block(run: Run) -> None:
    """Of a served forward. Lanes and transports are closed by then."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step == 5:
                loss = run.loss(step, batch)
                break
            run.train(step, batch)
    run.record_raw("after the block")
    loss.backward()
    run.optimizer.step()
    run.record_raw("after its backward")
    run.train(9, run.loader(9, 10)[0])
