"""Finds files, row groups and columns, from names and footers only.

A `listing` is the list of files before any is opened, from folders, a table or a state. A `catalog` adds the numbers
of their `footers` that planning needs, and the `bounds` of some columns. In memory it has one form, arrays per file and
per row group. It has two serialized forms: the same arrays without the listing, for processes and hosts that have it
(`shared_arrays`), and a Parquet file with the listing (`fsdata.lake.catalog_file`). Parsed footers are not kept.

`retry` repeats failed reads. `prune` skips files and row groups that cannot match the filter; `binding` assigns a
column to every field; `fingerprint` identifies the data at resume.
"""
