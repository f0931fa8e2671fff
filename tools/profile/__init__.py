"""`freescale profile`: the lengths of a data set, and what FreeScale would bring for it.

`command` calls `measure`, then `predict`: simulated `stragglers`, `advice` with code to paste, collisions,
steps, and what `sharing` of histories saves. `report` says what is shown, with `length_report` and
`straggler_report`.
`diff_command` is `freescale diff`, which compares two documents by their `diff`.
"""
