"""`freescale profile`: the lengths of a data set, and what FreeScale would bring for it.

`command` calls `measure`, then `predict`: simulated `stragglers`, settings to `recommend` with `loader_code`
to paste, collisions and steps. `tables` and `page` show the result.
"""
