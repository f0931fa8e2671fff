"""`freescale calibrate`: a cost model from measured steps.

`command` reads `measured_steps`. `fits` makes the document of what follows from them, `calibration` reads it for other
commands. `report` says what is shown.
"""
