"""Whether the simulation predicts what was measured.

`held_out` (two numbers are fitted), `parts` (steps in parts have one more), `published` and `time_lost` (nothing is
fitted) compare, line by line as in `comparison`.
"""
