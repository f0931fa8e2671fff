"""What pyarrow decodes: `record_batches` decodes, filters and maps batches of rows, `widen` converts them, and `lists`
makes columns of their lists.
"""
