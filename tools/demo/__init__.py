"""`freescale demo`: one small model, trained with and without FreeScale. Read `train` first: it is a training loop.

`command` takes synthetic `data`, or data that `discover` finds in a folder, and starts `ranks` on this machine: they
`train` the `model` several times, on links of memory and on a `link` of a stated speed, which `pacing` emulates where
the network cannot be shaped. `results` says what came out, `screen` shows it as a table and two sentences, `picture`
draws it.
"""
