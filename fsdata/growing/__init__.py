"""A folder that grows while it is read.

`follow` is what the user says. `watermark` decides which files may be read, `watcher` looks for them on rank 0, with
the matches of their rows in `late` side tables. `growing_files` open what came, `followed_data` does so on every rank,
with the rows of a `late_side`; `followed` takes the step from one extension of the data to the next on all ranks at
once. A `segment` is what is read between two of them.
"""
