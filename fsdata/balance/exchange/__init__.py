"""Moves the samples of a global batch to the ranks that a plan assigns, while the model trains.

`step_exchange` runs one step: it gathers status words and lengths, compares the plans of all ranks, and then moves the
samples by a `transfer` along a `route`.
"""

from fsdata.balance.exchange.route import RecordSpec
from fsdata.balance.exchange.step_exchange import StepExchange, StepResult

__all__ = ["RecordSpec", "StepExchange", "StepResult"]
