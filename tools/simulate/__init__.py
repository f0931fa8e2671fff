"""`freescale simulate`: a training step with and without what FreeScale does, at any number of ranks.

`command` calls `simulation`: `workload` reads a profile, `batches` draws global batches and packs them, `hardware`
reads its parameters, `schedule` times a step, `enough_rows` says how far rows reach, `verdict` which remedies pay.
`report` says what is shown.
`links` is `freescale measure-links`, which writes the parameters of hardware.
"""
