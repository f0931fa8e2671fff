"""Reading list columns of many Parquet files: their lengths, and nothing more than a command needs.

`files` finds them, `columns` finds columns in them, `engines` run the work, `times` cuts time into spans. `levels`
reads the lengths of lists from the levels of pages (by `level_kernels`), `lengths` counts rows into a `histogram`,
`histories` finds lengths where histories are stored once, `counts` counts from footers alone, `reading` gives whole
rows.
"""
