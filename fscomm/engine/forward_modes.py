"""How a forward runs: with the rows that were fetched ahead, or plainly. Decided from what this rank can see; the
ranks then agree (`agreement.py`)."""

from dataclasses import dataclass
from typing import Any

import torch

from fscomm.exchange.control_word import FAST, FETCH, FETCH_ALL, FOREIGN, PLAIN, WRONG
from fscomm.exchange.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A mode, and why it is not FAST (None: nothing that the user should hear of).

    lasting: the program will never be served in this place, whatever batch comes: an error where that was asked for.
    """

    mode: int
    why: str | None = None
    lasting: bool = False


def in_backward() -> bool:
    """Whether this thread is running a backward pass."""
    return torch._C._current_graph_task_id() != -1


def choose(m: int, step: Step | None, features: Any, *, served: bool, explicit: bool) -> Choice:
    """For a forward of module m while the user holds `step`.

    served: all ranks announced what the module gets in this step. explicit: the user says where its features are.
    """
    if not torch.is_grad_enabled():
        return Choice(mode=PLAIN)
    if step is None:
        return Choice(mode=FOREIGN, why="no batch was announced for it: use comm.lookahead(loader)", lasting=True)
    announced = step.features[m]
    foreign = served and (announced is None or not announced.matches(features))
    plain = FOREIGN if foreign else PLAIN
    if in_backward():
        why = "it is called again inside backward (activation checkpointing)"
        return Choice(mode=plain, why=why, lasting=True)
    if step.used[m]:
        return Choice(mode=plain, why="it is used more than once in a forward", lasting=True)
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        why = "hooks on saved tensors are active (activation checkpointing)"
        return Choice(mode=plain, why=why, lasting=True)
    here = f"step {step.number}: "
    if not served:
        if step.plain[m] is not None:
            return Choice(mode=PLAIN, why=step.plain[m], lasting=True)
        why = here + "another rank could not announce its features"
        return Choice(mode=PLAIN, why=None if announced is None else why)
    if foreign:
        return Choice(mode=WRONG if explicit else FOREIGN, why=here + "it got other features than the batch holds")
    if step.plain[m] is not None:
        return Choice(mode=PLAIN, why=here + str(step.plain[m]))
    if step.exclusive[m] is None:
        return Choice(mode=FETCH_ALL)
    return Choice(mode=FETCH if step.collision[m] is None else FAST)
