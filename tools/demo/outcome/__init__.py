"""What the demo shows at its end.

`equality` compares runs bit by bit, `planner` predicts other numbers of ranks, `tables` and `picture` show
all runs.
"""
