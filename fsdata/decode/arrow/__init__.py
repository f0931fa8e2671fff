"""What pyarrow decodes: `record_batches` decodes, filters and maps batches of rows, `widen` converts what they hold,
`lists` and `scalars` make columns of it.
"""
