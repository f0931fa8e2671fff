"""`freescale optimize`: Parquet files written again, for fast loading.

`command` calls `rewrite`, and shows what came of it. `rewrite` plans a `layout`, writes the rows, and compares them
with the source before the file gets its name.
"""
