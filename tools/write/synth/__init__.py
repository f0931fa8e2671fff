"""`freescale synth`: seeded Parquet files with histories of uneven length.

`command` writes `presets` or any number of `sources`, with `lengths` drawn from a distribution. `histories`
draws events, `table_files` writes files.
"""
