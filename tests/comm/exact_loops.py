"""Training loops as users write them; each is run with and without fscomm and must give the same bits.

A loop takes a `Run` and may use `run.enable()`, `run.loader()`, the model and the optimizer. It records what a user
could look at. `LOOPS` names them all.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from exact import Run, build_again, raw_state
from exact_model import Batch
from torchrec import KeyedJaggedTensor

LOOPS: dict[str, Callable[[Run], None]] = {}


def loop(function: Callable[[Run], None]) -> Callable[[Run], None]:
    LOOPS[function.__name__] = function
    return function


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


@loop
def state_dict_everywhere(run: Run) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step in (2, 3, 6):
                run.record(f"model {step}", run.model.state_dict())
                run.record(f"optimizer {step}", run.optimizer.state_dict())
                run.record_raw(f"raw {step}")


@loop
def state_dict_on_rank_0(run: Run) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step in (2, 3, 6) and run.rank == 0:
                run.record(f"model {step}", run.model.state_dict())
                run.record(f"optimizer {step}", run.optimizer.state_dict())


@loop
def optimizer_state_dict_first(run: Run) -> None:
    """The fused optimizer's state aliases memory of the lookups: it must be complete when it is asked first."""
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


@loop
def state_dict_between_backward_and_step(run: Run) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            run.loss(step, batch).backward()
            if step in (2, 5):
                run.record(f"model {step}", run.model.state_dict())
                run.record(f"optimizer {step}", run.optimizer.state_dict())
            run.optimizer.step()


@loop
def state_dict_between_forward_and_backward(run: Run) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            loss = run.loss(step, batch)
            if step in (2, 5):
                run.record(f"model {step}", run.model.state_dict())
            loss.backward()
            run.optimizer.step()


@loop
def flush(run: Run) -> None:
    """After flush() the memory itself is complete; one rank alone may call it."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step == 2:
                comm.flush()
                run.record_raw("all")
            if step == 4 and run.rank == run.size - 1:
                comm.flush()
                run.record_raw("alone")
            if step == 5:
                comm.flush()
                comm.flush()


@loop
def load_state_dict(run: Run) -> None:
    """Back to an earlier state in mid-run: what was looked up ahead is not valid any more."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step == 2:
                saved = {name: _copy(value) for name, value in run.model.state_dict().items()}
                kept = _copied_optimizer(run.optimizer.state_dict())
            if step == 4:
                run.model.load_state_dict(saved)
                run.optimizer.load_state_dict(kept)


@loop
def evaluation(run: Run) -> None:
    """Other data in eval mode and without gradients, between two steps."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step in (1, 2, 5):
                run.model.eval()
                with torch.no_grad():
                    for number, other in enumerate(run.loader(70, 72)):
                        run.record(f"eval {step}.{number}", run.model(other))
                run.model.train()


@loop
def evaluation_of_the_batch(run: Run) -> None:
    """The batch just trained on, and the batch about to be, without gradients; eval mode with gradients."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step == 3:
                with torch.no_grad():
                    run.record("before", run.model(batch))
            run.train(step, batch)
            if step == 5:
                with torch.no_grad():
                    run.record("after", run.model(batch))
            if step == 6:
                run.model.eval()
                run.record("eval mode", run.model(batch))
                run.model.train()


@loop
def unused_output(run: Run) -> None:
    """A feature, and then a whole table group, whose embeddings are not used in the loss."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            batch.extra["unused"] = (("r0",), ("t0", "t1"), ("r1", "s0"), ())[step % 4]
            run.train(step, batch)


@loop
def unused_module(run: Run) -> None:
    """Nothing a module gave is used in the loss, at some steps or at all of them."""
    last = list(run.config.modules)[-1]
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step not in (0, 3, 4):
                batch.extra["unused"] = [name for table in run.config.modules[last] for name in table.features]
            run.train(step, batch)


@loop
def skipped_module(run: Run) -> None:
    """One of the modules is not called at some steps."""
    last = list(run.config.modules)[-1]
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            batch.extra["skip"] = (last,) if step in (2, 5, 6) else ()
            run.train(step, batch)


@loop
def retained_graph(run: Run) -> None:
    """The graph is kept and run backward twice."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            loss = run.loss(step, batch)
            if step in (2, 5):
                with run.ddp.no_sync():
                    loss.backward(retain_graph=True)
            loss.backward()
            run.optimizer.step()


@loop
def two_backwards(run: Run) -> None:
    """Two losses of one forward, each with a backward of its own."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.optimizer.zero_grad()
            output = run.model(batch)
            run.record(f"output {step}", output)
            with run.ddp.no_sync():
                (output * batch.weight).mean().backward(retain_graph=True)
            (output**2).mean().backward()
            run.optimizer.step()


@loop
def embeddings_detached(run: Run) -> None:
    """A loss that does not reach the embeddings at some steps."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step in (2, 5):
                batch.extra["unused"] = list(run.config.features)
            run.train(step, batch)


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


@loop
def without_lookahead(run: Run) -> None:
    with run.enable():
        for step, batch in enumerate(run.loader()):
            run.train(step, batch)


@loop
def module_alone(run: Run) -> None:
    """A sharded module called by itself, outside the model's forward."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.train(step, batch)
            if step in (2, 4):
                name = next(iter(run.config.modules))
                found = run.model.module.embeddings[name](_ids(batch, name))
                values = torch.cat([jagged.values().float() for jagged in found.values()])
                run.record(f"values {step}", values)
                if step == 4:
                    (values**2 / 100).sum().backward()


def _ids(batch: Batch, module: str) -> KeyedJaggedTensor:
    return batch.ids[module] if module in batch.ids else batch.ids["all"]


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) or hasattr(value, "local_shards") else value


def _copied_optimizer(state: dict[str, Any]) -> dict[str, Any]:
    """A copy in which sharded tensors stay sharded."""
    if isinstance(state, dict):
        return {key: _copied_optimizer(value) for key, value in state.items()}
    return _copy(state)
