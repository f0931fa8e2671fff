"""The hardware that steps are simulated on.

`parameters` reads the TOML files of this folder, or one that the user names. With the links of a
training run it is `calibrated`.
"""
