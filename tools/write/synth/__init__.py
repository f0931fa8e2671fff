"""`freescale synth`: seeded Parquet files with histories of uneven length.

`command` reads the options, and writes one of the sets that `presets` draws. `collisions` draws ids
of global batches that collide at a given rate, for the demo and the benchmarks.
"""
