"""What was announced and what then comes: batches changed since, and modules that are not called for a while."""

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from exact import Run, compare, new_run
from exact_configs import CONFIGS
from patience import PATIENCE_S
from worlds import shared_world

from fscomm.engine.step import Step
from fscomm.exchange.control_word import ControlWords


def changed_in_place(run: Run) -> None:
    """By one rank, after the ids of the batch were sent ahead: all ranks must notice."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step in (2, 3, 4) and run.rank == 1:
                for ids in (kjt.values() for kjt in batch.ids.values()):
                    [ids, ids.data, ids.numpy()][step - 2].__imod__(5)
            run.train(step, batch)


def test_a_changed_batch_runs_plainly() -> None:
    for found, said in shared_world(2).run(compare, CONFIGS["small"], changed_in_place):
        assert found == []
        assert set(said["fallbacks"]) == {"embeddings.a", "embeddings.b"}


def one_module_rests(run: Run) -> None:
    """Module b is called in the first steps and in the last ones only."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader(0, 14))):
            if 3 <= step < 10:
                batch.extra["skip"] = ("b",)
            run.train(step, batch)


def test_nothing_is_fetched_for_a_module_that_rests() -> None:
    """After three steps; when it is called again it is served from the batch after the next."""
    for found, said in shared_world(2).run(compare, CONFIGS["small"], one_module_rests):
        assert found == []
        assert said["fallbacks"] == {"embeddings.b": "step 3: its forward was not called"}
        steps = {step["step"]: step["bytes"].get("embeddings.b", {}) for step in said["report"]["steps"]}
        fetched = [step for step, of_kind in steps.items() if "ids" in of_kind]
        assert set(range(8, 11)).isdisjoint(fetched)
        assert {4, 5, 13} <= set(fetched)
        assert said["report"]["forwards"]["embeddings.b"]["served"] >= 4


def evaluates_between(run: Run) -> None:
    """An evaluation over a look-ahead of its own, inside the loop that trains: with and without gradients to pull."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader(0, 8))):
            run.train(step, batch)
            if step == 4:
                with torch.no_grad():
                    for number, other in enumerate(comm.lookahead(run.loader(20, 24))):
                        run.record(f"evaluated {number}", run.model(other))
            if step == 6:
                for number, other in enumerate(comm.lookahead(run.loader(30, 36))):
                    with torch.no_grad():
                        run.record(f"evaluated too {number}", run.model(other))


def test_nothing_is_fetched_for_an_evaluation() -> None:
    """Where batches are pulled with gradients on, the first forward tells."""
    for found, said in shared_world(2).run(compare, CONFIGS["small"], evaluates_between):
        assert found == []
        assert said["fallbacks"] == {}
        steps = {step["step"]: step["bytes"] for step in said["report"]["steps"]}
        fetched = [step for step, by_module in steps.items() if any("ids" in of_kind for of_kind in by_module.values())]
        assert fetched == [1, 2, 3, 4, 5, 10, 11, 12, 13, 19]


def kept_losses(rank: int, size: int) -> int:
    """How many steps are still in memory when the losses of all are kept."""
    run = new_run(rank, size, CONFIGS["small"], "fscomm")
    losses = []
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            losses.append(run.loss(step, batch))
            losses[-1].backward()
            run.optimizer.step()
        with pytest.raises(RuntimeError, match="second time"):
            losses[3].backward()
        gc.collect()
        return sum(isinstance(each, Step) for each in gc.get_objects())


def test_losses_that_are_kept_keep_no_step() -> None:
    """But those around the last one."""
    assert max(shared_world(2).run(kept_losses)) <= 3


def flushed_by_another_thread(run: Run) -> None:
    """At the worst moment: the ranks have just agreed to run a forward with the rows that were fetched ahead."""
    with run.enable() as comm, ThreadPoolExecutor(1) as other:
        exchange = ControlWords.exchange

        def then_flush(*args: Any, **options: Any) -> Any:
            modes = exchange(*args, **options)
            other.submit(comm.flush).result(PATIENCE_S)
            return modes

        with mock.patch.object(ControlWords, "exchange", then_flush):
            for step, batch in enumerate(comm.lookahead(run.loader())):
                run.train(step, batch)


def test_a_flush_of_another_thread_changes_nothing() -> None:
    for found, said in shared_world(2).run(compare, CONFIGS["small"], flushed_by_another_thread):
        assert found == []
        assert said["fallbacks"] == {}
