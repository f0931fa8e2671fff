"""Files that are not found by listing: `tables` takes them from the metadata of Delta Lake and Iceberg tables, and
`catalog_file` from a catalog that was written beforehand.
"""
