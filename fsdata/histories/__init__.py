"""Histories that are stored once per key, and what a row sees of them.

`as_of` and `lookup` are what the user says. A `history_table` brings what had happened `as_of` a row's time, and a
`lookup_table` what belongs to the ids of a field; the processes of a host hold both together. `histories` finds the
window of a row, and a `resolver` the values of columns that are merged or looked up. `event_rows` are events of a table
as rows. Samples that see overlapping windows have `shared_events`.
"""
