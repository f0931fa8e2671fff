"""In-training redistribution: the samples of a global batch move to the ranks that a plan gives them to."""

from fsdata.redistribute.exchange import Assignment, GlobalBatch, Planner, Step, StepExchange
from fsdata.redistribute.record import RecordSpec
from fsdata.redistribute.word import Status

__all__ = ["Assignment", "GlobalBatch", "Planner", "RecordSpec", "Status", "Step", "StepExchange"]
