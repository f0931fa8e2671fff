"""One model of a training step, which all predictions come from.

`batches` deals global batches and says how long ranks wait; `waiting` says how sure that is. `workload` says what a
rank trains on, `hardware` on what; every number of both says where it comes from, and `clusters` has the hardware that
is bundled. `durations` says how long each part of a step takes alone, `step` which part waits for which, and when each
part runs. `simulation` makes the document of it, with a verdict on every remedy, and `report` says what is shown.
All but `hardware` and `profiles`, which read files, is pure.
"""
