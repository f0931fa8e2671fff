"""Rows through host memory (paper, section 3).

`staged` is the transport; `pieces` cuts an operation; `stages` runs the pieces in a thread; `pinned` keeps host memory;
`host` names the collectives that carry it between hosts.
"""
