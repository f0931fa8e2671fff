"""Files that are not listed: those of `table_files` are named by Delta Lake and Iceberg (`tables`), those of
`catalog_files` by a catalog that was made beforehand (`catalog_file`).
"""
