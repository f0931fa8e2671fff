"""`freescale synth`: seeded Parquet files with histories of uneven length.

`command` writes one of the `presets`, whose `histories` have lengths drawn from a distribution.
"""
