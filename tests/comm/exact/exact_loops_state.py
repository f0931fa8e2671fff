"""Loops that look at the state, change it, or evaluate in mid-run."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from exact import Run
from exact_registry import Loops
from patience import PATIENCE_S

loop = Loops()


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
                saved = copied(run.model.state_dict())
                kept = copied(run.optimizer.state_dict())
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


def copied(state: Any) -> Any:
    """A copy in which sharded tensors stay sharded."""
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) or hasattr(state, "local_shards") else state


@loop
def read_by_another_thread(run: Run) -> None:
    """As an asynchronous checkpoint does: all the time, while the training thread goes on."""
    run.set_rate(0)  # adds an entry to the optimizer's state, which nobody may read meanwhile
    with run.enable() as comm:
        stop = _again_and_again(comm.flush, run.model.state_dict, run.model.fused_optimizer.state_dict)
        try:
            for step, batch in enumerate(comm.lookahead(run.loader())):
                run.train(step, batch)
        finally:
            stop()


def _again_and_again(*actions: Callable[[], Any]) -> Callable[[], None]:
    """Do them in a thread of their own until the returned function is called, which raises what they raised."""
    over, errors = threading.Event(), []

    def work() -> None:
        try:
            while not over.is_set():
                for action in actions:
                    action()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def stop() -> None:
        over.set()
        thread.join(PATIENCE_S)
        if thread.is_alive() or errors:
            raise RuntimeError("the thread that reads has not ended") from (errors[0] if errors else None)

    return stop
