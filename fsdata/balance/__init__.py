"""How a global batch is balanced over the ranks.

`options` are the user's; a `cost` model weighs samples, `autotune` weighs ranks, `method_choice` weighs the time that
moving takes; `packing` plans. `step_plan` says what a plan is made from and what it decides; `exchange` moves the
samples.
"""
