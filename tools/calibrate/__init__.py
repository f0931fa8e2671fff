"""`freescale calibrate`: a cost model from measured steps.

`command` reads `measured_steps`. `calibration` makes its document of them, of the `cost_model` of the samples and the
`run_costs` of all else, and reads it for other commands. `tables` shows it.
"""
