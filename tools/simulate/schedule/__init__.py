"""One training step in time.

`durations` says how long each part of a step takes alone, `step` which part waits for which, and `lanes` when
each part runs.
"""
