"""`freescale collisions`: rows that consecutive global batches share, and ids that share a row of a table.

`command` calls `estimate`. Rows that are `held` in memory, read by `id_rows`, become batches as a loader deals them,
which `kernels` count. `table_slots` says which ids share a row of an embedding table. `report` says what is shown.
"""
