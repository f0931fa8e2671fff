"""Parts of a table that fit into memory: `plan` cuts the table into parts, by buckets and keys (`keys`).

`split` sorts events into parts, and `assemble` makes histories of the events of one part.
"""
