"""Tables that are joined to the rows as they are read.

A `side_table` brings fields by key, from memory or disk, also such that come later than the rows. A `history_table`
brings what `as_of` a row's time had happened, and a `lookup_table` what belongs to the ids of a field; the processes of
a host hold both together. `event_rows` are events of a table of histories as rows. `units` says what the integers of
keys, times and ids count, and refuses to compare or mix those that count something else.
"""
