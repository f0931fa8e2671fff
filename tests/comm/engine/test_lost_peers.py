"""The watch over exchanges of others: it closes their connections when one takes too long, and only then."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from exact import Run, new_run
from exact_configs import CONFIGS
from patience import PATIENCE_S, until
from worlds import shared_world

from fscomm.exchange.lost_peers import LostPeers


class SteppedClock:
    """Whose time a test sets. `looks` counts how often a thread waited by it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.looks = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float, event: threading.Event) -> bool:
        self.looks.release()
        self._go_on.acquire(timeout=PATIENCE_S)
        return event.is_set()

    def look(self, at_s: float) -> None:
        """Let the thread look once."""
        self.go_on(at_s)
        assert self.looks.acquire(timeout=PATIENCE_S)

    def go_on(self, at_s: float) -> None:
        self.seconds = at_s
        self._go_on.release()


def watched(rank: int, size: int, do: str) -> str:
    """What becomes of a group after an exchange of 1.1 of the limit, by what was done meanwhile."""
    group: Any = dist.new_group()
    clock = SteppedClock()
    peers = LostPeers([group], torch.device("cpu"), SimpleNamespace(clock=clock, timeout_s=PATIENCE_S, rank=rank))  # type: ignore[arg-type]
    assert clock.looks.acquire(timeout=PATIENCE_S)
    peers.begin()
    clock.look(0.9 * PATIENCE_S)
    if do:
        getattr(peers, do)()
        clock.look(1.1 * PATIENCE_S)
    else:
        clock.go_on(1.1 * PATIENCE_S)
        until(lambda: "fscomm peers" not in [each.name for each in threading.enumerate()], "the end of the watch")
    closing = threading.Thread(target=peers.close)
    closing.start()
    clock.go_on(1.1 * PATIENCE_S)
    closing.join(PATIENCE_S)
    try:
        dist.barrier(group)
    except RuntimeError:
        return "closed"
    return "open"


@pytest.mark.parametrize(("do", "becomes"), [("", "closed"), ("end", "open"), ("pause", "open")])
def test_connections_are_closed_when_an_exchange_takes_too_long(do: str, becomes: str) -> None:
    assert shared_world(2).run(watched, do) == [becomes] * 2


def caught(rank: int, size: int) -> list[bool]:
    """Whether others' exchanges are watched: in a backward pass that raises, after it, and after the next one."""
    run: Run = new_run(rank, size, CONFIGS["loops"].but(data_parallel=False), "fscomm")
    found: list[bool] = []
    with run.enable() as comm:
        peers = comm._engine._executor.peers

        def fail(_: torch.Tensor) -> None:
            found.append(peers.waits)
            raise ZeroDivisionError

        for step, batch in enumerate(comm.lookahead(run.loader())):
            loss = run.loss(step, batch)
            if step == 3:
                with pytest.raises(ZeroDivisionError):
                    _then(run.model.module.before.weight, fail, loss)
                found.append(peers.waits)
            else:
                loss.backward()
        found.append(peers.waits)
    return found


def _then(weight: torch.Tensor, fail: Callable[[torch.Tensor], None], loss: torch.Tensor) -> None:
    """A backward pass that fails behind the tables."""
    hook = weight.register_hook(fail)
    try:
        loss.backward()
    finally:
        hook.remove()


def test_a_backward_pass_that_raises_is_over() -> None:
    """However long the user's program then does something else."""
    assert shared_world(2).run(caught) == [[True, False, False]] * 2
