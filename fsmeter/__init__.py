"""fsmeter: what a training loop waits for, with or without fscomm, and without changing a bit of its results.

`meter` is BubbleMeter, a context manager. In its block, `calls` tells what PyTorch and TorchRec run, `notes` keeps what
counts in the step under way, `lengths` says how long samples are, and `clocks` mark time; `intervals` adds up what
ranks noted. `trace` writes a timeline of all threads. `prometheus` exports the counters of a loader and of fscomm.
"""

from fsmeter.intervals import BubbleReport
from fsmeter.meter import BubbleMeter
from fsmeter.prometheus import Prometheus
from fsmeter.trace import trace

__all__ = ["BubbleMeter", "BubbleReport", "Prometheus", "trace"]
