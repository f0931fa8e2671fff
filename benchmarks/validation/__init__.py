"""Whether the simulation predicts what was measured.

`fit` finds the few unknown numbers from plain training. `against_paper`, `against_benchmark`, `held_out` (steps with
fscomm have one fitted number of their own), `parts` (steps in parts have one more) and `published` (nothing is fitted)
compare, line by line as in `comparison`.
"""
