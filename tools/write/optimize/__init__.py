"""`freescale optimize`: Parquet files written again, for fast loading.

`command` calls `rewrite`: it plans a `layout`, may `sort` the rows, writes them, and must `compare` them with
the source before the file gets its name. `tables` shows sizes and times.
"""
