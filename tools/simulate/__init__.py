"""`freescale simulate`: a training step with and without what FreeScale does, at any number of ranks.

`command` calls `simulation`: `workload` reads a profile, `batches` draws global batches and packs them, `hardware`
reads its parameters, `schedule` times a step, `enough_rows` says how far rows reach, `verdict` which remedies pay.
`tables` and `page` show the result.
`links` is `freescale measure-links`, which writes hardware from what `exchange_times` measures.
"""
