"""Packing: which rank takes which sample of a global batch. Knows only arrays."""

from fsdata.packing.plan import OverCapError, Plan
from fsdata.packing.planning import Method, pack

__all__ = ["Method", "OverCapError", "Plan", "pack"]
