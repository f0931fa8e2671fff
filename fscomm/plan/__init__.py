"""Pure planning: ids in, index tensors out; no thread, no exchange.

`sharding_group` describes the tables; `shared_rows` finds, by `hash_tables`, the rows that two batches share;
`row_masks` packs that for the wire. `group_plan` plans what travels when: rows by `routes`, to hosts by `two_levels`;
pooled vectors by `bags`, added up in `gloo_order`. `ways` is what all give, and `wire_kernels` their passes over ids.
`compiled` has all kernels ready before the first step.
"""
