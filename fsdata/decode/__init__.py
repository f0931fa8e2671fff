"""From row groups to rows by reference.

An `opened_source` reads `source_files`; `files` keeps them open and reads those that are remote. `slice_plan` plans a
kind of file; `pages` decodes what it can, and `arrow` the rest; `slices` makes one table of both; `joins` bring fields
of other tables; `align` checks lengths. The result is a `row_table`, its fields in the order of `row_layout`.
`reused_buffers` keeps memory.
"""
