"""Pure planning: ids in, index tensors out; no thread, no exchange.

`sharding_group` describes the tables; `shared_rows` finds, by `hash_tables`, the rows that two batches share;
`row_masks` packs that for the wire; `routes` plans which row travels when.
"""
