"""Commands that need no training job, and few GPUs or none: they profile, predict, check and write data.

`__main__` is the program, and `cli` lists the commands. Each command has a folder: `profile`, `collisions`, `plan`,
`calibrate`, `check`, `demo`, the `model` of a step with `simulate`, and those that `write` files: `synth`, `optimize`,
`histories`, `catalog`, `init`, `warm`, `measure-links`. They share `report` (what is shown), `console` (messages) and
`scan` (reading columns).
"""
