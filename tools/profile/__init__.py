"""`freescale profile`: the lengths of a data set, and what FreeScale would bring for it.

`command` calls `measure`, then `predict`: simulated `stragglers`, what to `recommend` with `loader_code` to paste,
a `tradeoff` table, collisions, steps, and what `sharing` of histories saves. `report` says what is shown, with
`length_report` and `straggler_report`.
"""
