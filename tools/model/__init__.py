"""One model of a training step, which all predictions come from. Pure: no files but those of hardware.

`batches` draws global batches and says how long ranks wait. `workload` says what a rank trains on, `hardware` on what;
every number of both says where it comes from (`parameters`); `clusters` has the
hardware that is bundled. `durations` says how long each part of a step takes alone,
`step` which part waits for which, and `lanes` when each part runs.
"""
