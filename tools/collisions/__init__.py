"""`freescale collisions`: rows that consecutive global batches share.

`command` calls `estimate`. Rows that are `held` in memory, read by `id_rows`, become batches in a `batch_order`, which
`kernels` count. `tables` and `page`, with `page_sections` and
`page_figures`, show the result.
"""
