"""`freescale collisions`: rows that consecutive global batches share.

`command` calls `estimate`. Rows that are `held` in memory, read by `id_rows`, become batches in a `batch_order`, which
`kernels` count. `report` says what is shown.
"""
