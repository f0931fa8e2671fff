"""`freescale synth`: seeded Parquet files with histories of uneven length.

`command` reads the options, and writes one of the sets that `presets` draws.
"""
