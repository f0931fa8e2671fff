"""What pyarrow decodes: `record_batches` decodes, filters and maps batches of rows, `small_groups` decodes small row
groups together, `widen` converts what they hold, and `lists` and `scalars` make columns of it.
"""
