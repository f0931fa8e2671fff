"""`freescale histories`: flat event logs become a table of histories, one row per key.

`command` reads the options and has `build` do the work. `events` checks event files and reads them; `existing`
opens the table that is to be updated, which is read as events, too. `parts` sorts them piece by piece, so that
memory stays small. `write` stores the table, `statistics` counts what is in it, `folder` puts it into its place
in one step, and `tables` shows the result.
"""
