"""Commands that need no training job, and few GPUs or none: they profile, predict, check and rewrite data.

`cli` lists the commands. Each command has a folder: `profile`, `collisions`, `simulate`, `calibrate`,
`check`, `synth`, `demo`, and two that `rewrite` files, `optimize` and `histories`. They share `console`
(messages), `scan` (reading columns) and `report` (pages).
"""
