"""`freescale calibrate`: a cost model from measured steps.

`command` reads `measured_steps`, fits the `cost_model` of the samples and the `run_costs` of all else, and shows them
in `tables`. `calibration` is what other commands take of it.
"""
