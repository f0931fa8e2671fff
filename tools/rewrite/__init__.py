"""Commands that write Parquet files from those of the user: `optimize` lays them out anew, `histories` makes a table of
histories of an event log, `catalog` says what loaders need of many files.
"""
