"""Rows to batches, step by step, on one rank.

The `dataset` gives an epoch, by `times` where sources are merged by them; the `reader` (by `unit_reader`) decodes its
rows ahead; `steps` takes rows and exchanges them; `assemble` copies them into a batch, after they `explode` into
samples, once where samples `share` events; `adapt` makes it the user's own. `follow` does all of it with a folder that
grows. `timing` counts where the time goes, and `loader_options` are checked before all of it.
"""
