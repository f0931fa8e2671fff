"""Balancing while the model trains: the samples of a global batch move to the ranks that a plan gives them to.

`step_exchange` is one step: a `fitted_gather` of every rank's `status_word` and lengths, another one that compares the
plans, then a `transfer` of samples by a `route`; `record` says which fields they have. `alone` is the group of one
rank.
"""

from fsdata.balance.exchange.record import RecordSpec
from fsdata.balance.exchange.status_word import StatusWord
from fsdata.balance.exchange.step_exchange import (
    CLOSED,
    RESTARTED,
    Assignment,
    GlobalBatch,
    Planner,
    StepExchange,
    StepResult,
    told,
)

__all__ = [
    "CLOSED",
    "RESTARTED",
    "Assignment",
    "GlobalBatch",
    "Planner",
    "RecordSpec",
    "StatusWord",
    "StepExchange",
    "StepResult",
    "told",
]
