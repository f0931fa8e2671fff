"""`freescale check`: everything in the data that a loader would stop at.

`command` loads the schema by `schema_option` and makes a `source_check` of each source. It reads row groups
as the loader does; `table_scan` and `row_faults` look at the rows that fail. `findings` are shown by
`report`.
"""
