"""From row groups to rows by reference.

An `opened_source` reads `source_files`, or rows that `joins` find; `files` keeps them open and reads those
that are remote. `piece_plan` plans a kind of file; `decode_piece` makes a `piece` of what `pages` decodes, and `arrow`
of the rest; `joins` bring fields of other tables. A piece decides what becomes of nulls, aligns lists, and ends as a
`block`, its fields in the order of `row_layout`. `reused_buffers` keeps memory.
"""
