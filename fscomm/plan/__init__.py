"""Pure planning: ids in, index tensors out; no thread, no exchange.

`sharding_group` describes the tables of a group; `shared_rows` finds, by `hash_tables`, the rows that two batches
share. `peer_ids` numbers what a pair of ranks exchanges, and `group_plan` is the ledger: buckets by class and peer, and
the legs of what travels. `row_plan` is the plan of rows; `fscomm.bags` and `fscomm.two_levels` have the other ones.
`kernel_calls` says how fused kernels are called, `masks` how owners reply; `kernels` are the passes over ids.
`number_of_parts` chooses how many parts a step has.
"""
