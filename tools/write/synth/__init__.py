"""`freescale synth`: seeded Parquet files with histories of uneven length.

`command` writes one of the `presets`, with `lengths` drawn from a distribution. `histories` draws events,
`table_files` writes files.
"""
