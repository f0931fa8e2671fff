"""Pure planning: ids in, index tensors out; no thread, no exchange.

`sharding_group` describes the tables; `shared_rows` finds, by `hash_tables`, the rows that two batches share.
`group_plan` makes the plan of a group, which says what travels when: rows by `routes`, to hosts by `two_levels`; pooled
vectors by `bags`, added up in `gloo_order`. `ways` is what all plans give, and `wire_kernels` their passes over ids.
`number_of_parts` chooses how many parts a step has.
"""
