"""`freescale histories`: flat event logs become a table of histories, one row per key.

`command` reads the options, has `build` do the work, and shows the result. `events` checks event files and reads
them, `parts` splits them into pieces that fit into memory, `statistics` counts what is in the table, and `table` is
the table on disk.
"""
