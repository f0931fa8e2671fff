"""Steps that are computed in parts (`fscomm.enable(parts=...)`): an extension, which the core does not import.

`asked` decides whether a model can do so. `batch_parts` cuts batches, `number_of_parts` and `step_times` choose into
how many. `schedule` runs the parts, `row_classes` are the classes of their rows, and `whole_call` is one plain forward
of all parts. With index dedup, `dedup_binding` finds the distinct ids of a step, `dedup_plan` plans how they travel.
"""
