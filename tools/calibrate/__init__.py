"""`freescale calibrate`: a cost model from measured steps.

`command` reads `measured_steps`. `calibration` makes its document of what `fits` says of them, and reads it for other
commands. `report` says what is shown.
"""
