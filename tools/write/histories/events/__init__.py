"""Events, one per row: `checks` finds what is wrong with event files, `layout` says which columns they have.

`sources` reads event files and history tables as streams of events.
"""
