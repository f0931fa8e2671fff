"""`freescale calibrate`: a cost model from measured steps.

`command` reads `measured_steps`, fits the `cost_model`, the `run_costs` and the
`own_costs` of balancing and fscomm, and shows them by `report`. `calibration` is what other commands take of it.
"""
