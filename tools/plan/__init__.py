"""`freescale plan`: which rank holds which part of which embedding table, for the least step.

`command` reads what the user gives: `tables` from a TOML file, or `torchrec` from a model; `access` adds from a profile
and its data how often rows are used. `costs` says how long the parts of a step take, `steps` what is left of them
beside computation. `torchrec` drives TorchRec's planner with these costs, and writes and loads plans. `document` says
what comes out, and `report` shows it.
"""
