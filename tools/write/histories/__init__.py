"""`freescale histories`: flat event logs become a table of histories, one row per key.

`command` reads the options, has `build` do the work in parts that fit into memory, and shows the result. `events`
checks event files and reads them, and `table` is the table on disk.
"""
