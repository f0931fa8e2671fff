"""Readers of rows behind one interface, `row_reader`: `source_files` for Parquet (its `row_groups`, by `open_files`),
`given_rows` for a `RowSource` of the user. Extensions have further ones.
"""
