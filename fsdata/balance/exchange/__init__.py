"""Balancing while the model trains: the samples of a global batch move to the ranks that a plan gives them to.

`step_exchange` is one step: `messages` with every rank's status word and lengths, others that compare the plans, then a
`transfer` of samples by a `route`.
"""

from fsdata.balance.exchange.route import RecordSpec
from fsdata.balance.exchange.step_exchange import CLOSED, RESTARTED, StepExchange, StepResult, told
from fsdata.balance.step_plan import Assignment, GlobalBatch, Planner, StatusWord

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
