"""Packing: which rank takes which sample of a global batch. Knows only arrays.

`planning` checks a problem, `methods` solve it with the kernels of `fsdata.balance.kernels.packing`, and `plan` says
how good the result is. The tests have the same in plain Python.
"""

from fsdata.balance.packing.plan import OverCapError, Plan
from fsdata.balance.packing.planning import Method, pack

__all__ = ["Method", "OverCapError", "Plan", "pack"]
