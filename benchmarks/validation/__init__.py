"""Whether the simulation predicts what was measured.

`fit` finds the few unknown numbers from plain training; `against_paper` and `against_benchmark` compare the
predictions, line by line as in `comparison`.
"""
