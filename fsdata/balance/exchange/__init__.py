"""Balancing while the model trains: the samples of a global batch move to the ranks that a plan gives them to.

`step_exchange` is one step: every rank's status word with the lengths of its samples, others that compare the plans,
then a `transfer` of samples by a `route`.
"""

from fsdata.balance.exchange.route import RecordSpec
from fsdata.balance.exchange.step_exchange import StepExchange, StepResult

__all__ = ["RecordSpec", "StepExchange", "StepResult"]
