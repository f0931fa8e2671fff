"""Reads list columns of many Parquet files, as far as a command needs them: mostly their lengths only.

`files` lists the files, `columns` locates columns in them, `discover` guesses the columns of a history that no option
names. `rows` reads them: whole rows, or the lengths of lists from the `levels` of their pages (by `level_kernels`).
`lengths` counts rows in a `histogram`, optionally by span of `times`; `histories` computes the lengths of histories
that are stored once. `batch_order` computes the rows of global batches. `engines` run the work, in this process or on a
Ray cluster.
"""
