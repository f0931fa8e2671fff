"""`freescale simulate`: a training step with and without what FreeScale does, at any number of ranks.

`command` calls `simulation`: `workload` reads a profile, `hardware` its parameters, `schedule` times a step,
`enough_rows` says how far rows reach, `validation` compares with measurements. `tables` and `page`, with
`page_sections` and `page_figures`, show the result.
"""
