"""`freescale demo`: one small model, trained with and without FreeScale. Read `train` first: it is a training loop.

`command` takes synthetic `data`, or data that `discover` finds in a folder, and starts `train` on every rank: it
trains the `model` several times. `results` says what came out, and draws it.
"""
