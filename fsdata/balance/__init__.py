"""Balances a global batch over the ranks.

`options` has the user's options. A `cost` model weighs samples, `autotune` weighs ranks, `method_choice` weighs the
time of moving samples, and `packing` plans. `step_plan` has the input and the result of a plan; `exchange` moves the
samples.
"""
