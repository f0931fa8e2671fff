"""Predicts the timeline of a training step, with and without what FreeScale does, at any number of ranks."""

from .hardware import Hardware, load_hardware
from .simulation import simulate

__all__ = ["Hardware", "load_hardware", "simulate"]
