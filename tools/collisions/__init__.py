"""`freescale collisions`: rows that consecutive global batches share.

`command` calls `estimate`, which holds `ids_in_memory` (by way of `arrow_ids`) or `ids_stored_once`, makes
batches in a `batch_order` and counts with `kernels`. `report` says what is shown.
"""
