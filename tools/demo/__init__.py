"""`freescale demo`: one small model, trained with and without FreeScale.

`command` takes synthetic `data` or data that `discover` describes; `launch` starts `training` of the `model`
on every rank and shows the `outcome`. The plain loader finds histories of requests by `plain_histories`.
"""
