"""Where work on many files runs.

`engine` is the interface, `threads` and `ray_cluster` run the work, `choose` picks one by its name.
"""
