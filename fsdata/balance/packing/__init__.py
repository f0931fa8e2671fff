"""Packing: assigns the samples of a global batch to ranks. Arrays in, arrays out.

`planning` checks a problem, `methods` solves it with the kernels of `fsdata.balance.kernels.packing`, and `plan` rates
the result. The tests have plain Python references of all methods.
"""

from fsdata.balance.packing.plan import OverCapError, Plan
from fsdata.balance.packing.planning import Method, pack

__all__ = ["Method", "OverCapError", "Plan", "pack"]
