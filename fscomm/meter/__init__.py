"""BubbleMeter: how much of a loop's time is not compute, and why.

`meter` is the context manager; `clocks` mark time; `waits` notes every wait for other ranks; `intervals` adds them up.
"""
