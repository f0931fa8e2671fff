"""When operations are issued: what these tests see changes no result, but how long a step takes."""

from collections.abc import Callable
from typing import Any

import torch
from exact import Run, compare
from exact_configs import CONFIGS
from exact_loops import base
from worlds import shared_world


def late_backward(run: Run) -> None:
    """The next batch is asked for before the backward pass through the one before it."""
    with run.enable() as comm:
        before: torch.Tensor | None = None
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if before is not None:
                before.backward()
            before = run.loss(step, batch)
        assert before is not None
        before.backward()


def moved(rank: int, size: int, loop: Callable[[Run], None]) -> tuple[list[str], list[Any]]:
    """What differs from the plain loop, and the bytes that travelled in each step, by module and kind."""
    found, said = compare(rank, size, CONFIGS["row"].but(steps=8), loop)
    return found, [step["bytes"] for step in said["report"]["steps"]]


def test_exclusive_rows_travel_once_when_no_update_comes_before_their_use() -> None:
    """As where backward passes are in time. In the first steps updates may be of any rows: they run plainly."""
    late, in_time = (shared_world(2).run(moved, loop) for loop in (late_backward, base))
    for (found, by_step), (_, expected) in zip(late, in_time, strict=True):
        assert found == []
        assert by_step[4:] == expected[4:]
        assert any(of["embeddings.a"]["exclusive rows"]["sent"] for of in by_step[4:])
