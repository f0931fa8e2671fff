"""Whether the simulation predicts what was measured.

`fit` finds the few unknown numbers from plain training. `against_paper`, `held_out` (steps with fscomm have one fitted
number of their own), `parts` (steps in parts have one more), `published` and `time_lost` (nothing is fitted) compare,
line by line as in `comparison`.
"""
