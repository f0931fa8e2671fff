"""Commands that need no training job, and few GPUs or none: they profile, predict, check and write data.

`cli` lists the commands. Each command has a folder: `profile`, `collisions`, `simulate`, `plan`, `calibrate`,
`check`, `demo`, and those that `write` files: `synth`, `optimize`, `histories`, `catalog`, `init`,
`warm`. They share `console` (messages), `scan` (reading columns) and `report` (pages).
"""
