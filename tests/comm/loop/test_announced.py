"""What was announced and what then comes: batches changed since, loops left and started again, batches left out."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from exact import Run, compare
from exact_configs import CONFIGS
from exact_model import Batch
from worlds import shared_world


def changed_in_place(run: Run) -> None:
    """By one rank, after the ids of the batch were sent ahead: all ranks must notice."""
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step % 3 == 2 and run.rank == 1:
                for kjt in batch.ids.values():
                    kjt.values().remainder_(5)
            run.train(step, batch)


def left_and_started_again(run: Run) -> None:
    with run.enable() as comm:
        batches: Any = run.loader() if run.mode == "plain" else comm.lookahead(run.loader())
        for epoch in range(3):
            for step, batch in enumerate(itertools.islice(batches, 3)):
                run.train(10 * epoch + step, batch)


def left_out(run: Run) -> None:
    with run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step not in (2, 3):
                run.train(step, batch)


def loader_fails(run: Run) -> None:
    """On all ranks; the batch before is trained on, then everybody sees the error."""

    def batches() -> Iterator[Batch]:
        yield from run.loader(0, 3)
        raise OSError("disk")

    def train() -> None:
        with run.enable() as comm:
            for step, batch in enumerate(comm.lookahead(batches())):
                run.train(step, batch)

    with pytest.raises(OSError, match="disk"):
        train()
    assert "output 2" in run.log
    run.record_raw("after the block")
    run.train(9, run.loader(9, 10)[0])


@pytest.mark.parametrize("loop", [left_and_started_again, loader_fails])
def test_served_bitwise(loop: Callable[[Run], None]) -> None:
    for found, said in shared_world(2).run(compare, CONFIGS["loops"], loop):
        assert found == []
        assert said["fallbacks"] == {}


def test_batches_left_out() -> None:
    """Served again from the next batch on; the report says which was not."""
    for found, said in shared_world(2).run(compare, CONFIGS["loops"], left_out):
        assert found == []
        assert said["fallbacks"] == dict.fromkeys(
            ("embeddings.a", "embeddings.b"), "step 2: its forward was not called"
        )


def test_a_changed_batch_runs_plainly() -> None:
    for found, said in shared_world(2).run(compare, CONFIGS["loops"], changed_in_place):
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
    for found, said in shared_world(2).run(compare, CONFIGS["loops"], one_module_rests):
        assert found == []
        steps = {step["step"]: step["bytes"].get("embeddings.b", {}) for step in said["report"]["steps"]}
        fetched = [step for step, of_kind in steps.items() if "ids" in of_kind]
        assert set(range(8, 11)).isdisjoint(fetched)
        assert {4, 5, 13} <= set(fetched)
        assert said["report"]["forwards"]["embeddings.b"]["served"] >= 4
