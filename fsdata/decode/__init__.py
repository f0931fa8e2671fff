"""From row groups to rows by reference.

An `opened_source` reads `source_files`, by `row_groups` of `open_files`, or rows that an extension finds. `piece_plan`
plans a kind of file; `decode_piece` makes a `piece` of what `fsdata.pages` decodes, and `arrow` of the rest; joined
tables (`attached`, their keys checked by `join_keys`) bring more fields. A piece decides what becomes of nulls, aligns
lists, and ends as a `block`, its fields in the order of `row_layout`. `reused_buffers` keeps memory.
"""
