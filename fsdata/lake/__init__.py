"""Files that are not listed: `tables` of Delta Lake and Iceberg name theirs, a `catalog_file` was made beforehand."""
