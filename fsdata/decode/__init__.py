"""From row groups to rows by reference.

An `opened_source` reads its rows by one of the `readers`. `plan` says how a kind of file is decoded; `decode` fills
`decoded_rows`, lists by `fsdata.pages` and the rest by `arrow`. Then stages complete them: joined tables (`attached`,
read as `keyed_rows`), `align` of lists. `nulls` has the null policies. The rows end as a `block`, their fields in the
order of `row_layout`. `source_checks` compares a source with its schema; `reused_buffers` keeps memory.
"""
