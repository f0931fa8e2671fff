"""BubbleMeter: how much of a loop's time is not compute, and why.

`meter` is the context manager; `clocks` mark time; `waits` notes every wait for other ranks, `passes` what the model
runs, `lengths` how long samples are; `intervals` adds them up. `patches` replaces and puts back.
"""
