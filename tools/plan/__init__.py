"""`freescale plan`: which rank holds which part of which embedding table, for the least step.

`command` reads what the user gives. `tables` come from a TOML file, or from a model by `torchrec`, and from the
profiled data. `costs` says how long the parts of a step take, `torchrec` how tables can be sharded, and `search` finds
the plan that costs least. `report` says what comes out, and what of that is shown.
"""
