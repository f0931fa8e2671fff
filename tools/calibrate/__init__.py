"""`freescale calibrate`: a cost model from measured steps.

`command` reads `measured_steps`, fits the `cost_model` and shows it in `tables`.
"""
