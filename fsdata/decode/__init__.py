"""From row groups to rows by reference.

An `opened_source` reads `source_files` by their `handles`, `slice_rows` rows at a time: `field_table` plans the
columns, `slices` decodes them, `widen` converts what needs it, `side_table` joins, `align` checks lengths. The result
is a `row_table`, its fields in the order of `row_layout`; `reused_buffers` keeps memory.
"""
