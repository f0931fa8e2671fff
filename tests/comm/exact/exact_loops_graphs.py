"""Loops over parts of what the model gives: outputs unused, modules skipped or alone, graphs run twice, two models."""

import torch
from exact import Run, build_again, raw_state
from exact_model import Batch, given_out, ids_of
from exact_registry import Loops
from torch.utils.checkpoint import checkpoint

loop = Loops()


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
def recomputed_after_its_update(run: Run) -> None:
    """Backward comes to a served module, and then calls it again (activation checkpointing): a look-up in the middle
    of a pass, behind the update that this pass has just brought."""
    name = next(iter(run.config.modules))
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            run.set_rate(step)
            run.optimizer.zero_grad()

            def again(scale: torch.Tensor, batch: Batch = batch) -> torch.Tensor:
                return given_out(run.model.module.embeddings[name](ids_of(batch, name))) * scale

            beside = checkpoint(again, torch.ones(1, requires_grad=True), use_reentrant=True)
            (run.loss(step, batch) + (beside**2).mean()).backward()
            run.optimizer.step()


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
                values = given_out(run.model.module.embeddings[name](ids_of(batch, name)))
                run.record(f"values {step}", values)
                if step == 4:
                    (values**2 / 100).sum().backward()
