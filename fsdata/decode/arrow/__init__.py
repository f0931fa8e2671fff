"""What pyarrow decodes: `record_batches` decodes, filters and maps batches of rows, `widen` converts them, `scalars`
and `lists` make columns of their values and lists.
"""
