"""What has nothing to do with each other does not wait for each other."""

import threading
from typing import Any
from unittest import mock

import torch
from exact import new_run
from exact_kinds import TWO, without_gradients
from exact_model import Config, build
from patience import PATIENCE_S
from worlds import shared_world

import fscomm
from fscomm.exchange.row_exchange import RowExchange

CONFIG = Config(modules=TWO, static_graph=False)


def looked_up_beside(rank: int, size: int) -> bool:
    """Whether module b, which is not trained, gave its rows while a pending update of module a was under way."""
    run = new_run(rank, size, CONFIG.but(builder=without_gradients), "fscomm", {})
    may_update = threading.Event()
    gave_up: list[bool] = []
    update = RowExchange.update

    def held(self: RowExchange, *args: Any, collision: bool) -> None:
        if not collision:
            gave_up.append(not may_update.wait(PATIENCE_S))
        update(self, *args, collision=collision)

    may_update.set()
    with mock.patch.object(RowExchange, "update", held), run.enable() as comm:
        for step, batch in enumerate(comm.lookahead(run.loader())):
            if step == 4:
                may_update.clear()
            run.train(step, batch)
            if step == 4:
                with torch.no_grad():
                    dict(run.model.module.embeddings["b"](batch.ids["b"]).items())
                may_update.set()
    return bool(gave_up) and not any(gave_up)


def test_a_module_waits_for_updates_of_its_own() -> None:
    assert shared_world(2).run(looked_up_beside) == [True, True]


def collision_behind_exclusive(rank: int, size: int) -> list[int]:
    """Exclusive work waits for the wire, collision work waits for that, and more collision work could go at once."""
    model, _ = build(CONFIG, size)
    done: list[int] = []
    begun = threading.Event()
    with fscomm.enable(model, timeout_s=PATIENCE_S) as comm:
        assert comm._engine is not None
        connections = comm._engine._connections

        def exclusive() -> None:
            begun.wait(PATIENCE_S)
            connections.wire_gate.wait()
            done.append(1)

        first = connections.submit("exclusive", exclusive)
        second = connections.submit_collision(lambda: done.append(2), after=[first], expecting=lambda: False)
        third = connections.submit_collision(lambda: done.append(3), after=[], expecting=lambda: False)
        begun.set()
        try:
            third.result(PATIENCE_S)
        finally:
            connections.wire_gate.stop()
        second.result()
    return done


def test_the_wire_is_not_kept_for_what_waits_for_the_wire() -> None:
    assert shared_world(2).run(collision_behind_exclusive) == [[1, 2, 3]] * 2
