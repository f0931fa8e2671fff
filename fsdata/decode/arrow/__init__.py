"""What pyarrow decodes: `record_batches` decodes, filters and maps batches of rows, `widen` converts them, and `lists`
and `scalars` make columns of them.
"""
