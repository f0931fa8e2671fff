"""Reading list columns of many Parquet files: their lengths, and nothing more than a command needs.

`files` finds them, `columns` finds columns in them, `discover` the columns of a history that no option names. `rows`
reads them: whole rows, or the lengths of lists from the `levels` of their pages (by `level_kernels`). `lengths` counts
rows into a `histogram`, also by span of `times`, and `histories` finds lengths where histories are stored once.
`batch_order` says which rows make a global batch. `engines` run the work, here or on a Ray cluster.
"""
